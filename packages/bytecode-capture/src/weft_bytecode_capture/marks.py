"""What a user says about sizes before a call: marks on tensors' dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from ._torch import TORCH_MARKS

_ATTRIBUTE = "_weft_marks"


class MarkError(ValueError):
    """A mark that the tensor, or the program, does not keep to; names the argument."""


@dataclass(frozen=True)
class DimensionMark:
    """The size of a dimension may be any number in ``minimum .. maximum`` (None: not said)."""

    minimum: int | None = None
    maximum: int | None = None

    def __str__(self) -> str:
        low = "" if self.minimum is None else str(self.minimum)
        high = "" if self.maximum is None else str(self.maximum)
        return f"{low}..{high}" if low or high else "any size"


@dataclass(frozen=True)
class TensorMarks:
    """All marks of a tensor, by dimension counted from 0.

    ``preferred``: dynamic if the program lets them be; one that fixes such a size is compiled for that size.
    """

    dynamic: dict[int, DimensionMark] = field(default_factory=dict)
    static: frozenset[int] = frozenset()
    preferred: frozenset[int] = frozenset()

    def over(self, others: TensorMarks) -> TensorMarks:
        """Both, these where a dimension has both."""
        dynamic = {d: mark for d, mark in others.dynamic.items() if d not in self.static}
        static = others.static - self.dynamic.keys()
        preferred = self.preferred | (others.preferred - self.static)
        return TensorMarks(dynamic | self.dynamic, static | self.static, preferred)


def mark_dynamic(
    t: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Say that a dimension's size differs between calls: it is symbolic from the first compilation on.

    ``min`` and ``max`` bound the size, in elements, in every later call.  Without a ``min`` code is compiled
    for sizes of 2 and more, and for 0 and for 1 apart; a ``min`` below 2 lets a size of 1 share the code.
    A program that fixes the size nevertheless raises ValueError when it is compiled.

    :raises TypeError: ``t`` is no tensor, or ``dim``, ``min`` or ``max`` no integer.
    :raises ValueError: ``t`` has no dimension ``dim``, ``min`` is negative or above ``max``, or the size is
        out of that range.
    """
    for position in _dimensions(t, dim):
        for name, bound in (("min", min), ("max", max)):
            if bound is not None and type(bound) is not int:
                raise TypeError(f"{name} must be an integer, got {bound!r}")
        if min is not None and min < 0:
            raise ValueError(f"min must not be negative, got {min}")
        if min is not None and max is not None and min > max:
            raise ValueError(f"min must not be above max, got min={min} and max={max}")
        mark = DimensionMark(min, max)
        check_size(mark, t.shape[position], f"dimension {position} of t")
        _add(t, TensorMarks({position: mark}))


def maybe_mark_dynamic(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """As :func:`mark_dynamic`, but a program that fixes the size is compiled for that size.

    :raises TypeError: ``t`` is no tensor or ``dim`` no integer.
    :raises ValueError: ``t`` has no dimension ``dim``.
    """
    for position in _dimensions(t, dim):
        _add(t, TensorMarks(preferred=frozenset({position})))


def mark_unbacked(
    t: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """As :func:`mark_dynamic` with a ``min`` of 0: a size of 1 shares the code of others."""
    mark_dynamic(t, dim, min=0 if min is None else min, max=max)


def mark_static(t: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Say that a dimension's size (None: every dimension's) is a constant: each size is compiled for itself.

    :raises TypeError: ``t`` is no tensor or ``dim`` no integer.
    :raises ValueError: ``t`` has no dimension ``dim``.
    """
    for position in _dimensions(t, dim):
        _add(t, TensorMarks(static=frozenset({position})))


def check_size(mark: DimensionMark, size: int, what: str) -> None:
    """
    :raises MarkError: ``size`` is out of the mark's range.
    """
    low, high = mark.minimum, mark.maximum
    if (low is not None and size < low) or (high is not None and size > high):
        raise MarkError(f"{what} has size {size}, out of its mark's range {mark}")


def marks_of(tensor: torch.Tensor) -> TensorMarks:
    """The marks on a tensor, weft's and torch's own (weft's win)."""
    dynamic: dict[int, DimensionMark] = {}
    for name, minimum in TORCH_MARKS.dynamic.items():
        for position in getattr(tensor, name, ()):
            dynamic[int(position)] = DimensionMark(minimum)
    for entry in getattr(tensor, TORCH_MARKS.ranges, ()):
        dynamic[int(entry.dim)] = DimensionMark(entry.min, entry.max)
    for position, (minimum, maximum) in getattr(tensor, TORCH_MARKS.bounds, {}).items():
        dynamic[int(position)] = DimensionMark(0 if minimum is None else minimum, maximum)
    static = frozenset(int(position) for position in getattr(tensor, TORCH_MARKS.static, ()))
    preferred = frozenset(int(position) for position in getattr(tensor, TORCH_MARKS.preferred, ()))
    return _own_marks(tensor).over(TensorMarks(dynamic, static, preferred))


def _own_marks(tensor: torch.Tensor) -> TensorMarks:
    marks = getattr(tensor, _ATTRIBUTE, None)
    return marks if isinstance(marks, TensorMarks) else TensorMarks()


def _add(tensor: torch.Tensor, marks: TensorMarks) -> None:
    setattr(tensor, _ATTRIBUTE, marks.over(_own_marks(tensor)))


def _dimensions(t: torch.Tensor, dim: int | Iterable[int] | None) -> list[int]:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"t must be a tensor, got {type(t).__name__}")
    if dim is None:
        return list(range(t.dim()))
    found = []
    for position in [dim] if isinstance(dim, int) else list(dim):
        if type(position) is not int:
            raise TypeError(f"dim must be an integer, got {position!r}")
        if not -t.dim() <= position < t.dim():
            raise ValueError(f"dim {position} is out of range: t has {t.dim()} dimensions")
        found.append(position % t.dim())
    return found
