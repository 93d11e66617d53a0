"""Calls that eager's own kernel refuses and the operator's fake lets pass: ranks, sizes, dtypes, numbers.

``celu(x, alpha=0)``, ``hardshrink`` of integers, ``index_copy`` at places of int32: what kernels check is
written nowhere else, so the kernel is asked.  It runs once for operands of each form on small tensors of
zeros, and on ones where that fails: what it refuses of both it refuses whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ._torch import FakeTensor, OpOverload, number_hint, without_modes
from .unsupported import Unsupported

_MOST_ELEMENTS = 1 << 12
"""Of all operands of a call that is tried as it is; larger ones are asked for their dtypes alone."""

_MOST_FORMS = 1 << 14
"""How many answers of kernels are remembered at once."""

_BY_VALUE = (
    *(
        "linalg_",
        "_linalg_",
        "cholesky",
        "lu_",
        "triangular_solve",
        "lstsq",
        "ormqr",
        "segment_reduce",
    ),
    *(
        "_embedding_bag",
        "_ctc_loss",
        "_cudnn_ctc_loss",
        "_pack_padded_sequence",
        "_assert",
        "sspaddmm",
    ),
    *(
        "_validate",
        "quantize",
        "fake_quantize",
        "_make_per",
        "sparse_",
        "_sparse_",
        "histogram",
        "histc",
    ),
)
"""Beginnings of names of operators that may refuse both values, and take others."""

_UNTRIED = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.inplace_view,
    }
)

_known: dict[Any, str | None] = {}


def check_by_kernel(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager's kernel refuses operands of the forms of fake ``arguments``.

    Of a call on the CPU.  The graph then runs as it was captured, so that the error is eager's own.
    """
    if not _may_be_tried(operator):
        return
    try:
        key = (operator, _form(arguments), *((n, _form(v)) for n, v in keywords.items()))
    except _Untried:
        return
    if key not in _known:
        if len(_known) >= _MOST_FORMS:
            _known.clear()
        with without_modes():
            _known[key] = _refusal(operator, arguments, keywords)
    reason = _known[key]
    if reason is not None:
        raise Unsupported(
            "operands that the operator refuses",
            f"{operator}: {reason}",
            "give it operands that eager takes",
        )


class _Untried(Exception):
    """An argument of which no example can be made."""


def _may_be_tried(operator: OpOverload) -> bool:
    known = _tried.get(operator)
    if known is None:
        namespace, _, name = operator._schema.name.partition("::")
        known = _tried[operator] = (
            namespace == "aten"
            and not operator.is_view
            and not name.startswith(_BY_VALUE)
            and _UNTRIED.isdisjoint(operator.tags)
        )
    return known


_tried: dict[OpOverload, bool] = {}


def _form(value: Any) -> Any:
    """All of an argument that an example of it depends on, with sizes as they are now."""
    if isinstance(value, torch.Tensor):
        plain = type(value) is FakeTensor and value.layout is torch.strided
        if not plain or value.device.type != "cpu" or value.is_conj() or value.is_neg():
            raise _Untried
        shape, stride = map(_hints, (value.shape, value.stride()))
        return (torch.Tensor, value.dtype, shape, stride)
    if isinstance(value, (list, tuple)):
        return tuple(map(_form, value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _hint(value)
    if isinstance(value, torch.device) and value.type != "cpu":
        raise _Untried
    if isinstance(value, _PLAIN):
        return (type(value), value if value == value else "nan")
    raise _Untried


_PLAIN = (
    *(int, float, bool, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def _hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_hint, numbers))


def _hint(number: Any) -> Any:
    """A number in the call that is being compiled."""
    found = number_hint(number)
    if found is None:
        raise _Untried
    return found


def _refusal(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> str | None:
    """What the kernel says of zeros and of ones, None if it takes either."""
    tensors = list(_tensors([*arguments, *keywords.values()]))
    if not tensors:
        return None
    if sum(math.prod(_hints(tensor.shape)) for tensor in tensors) <= _MOST_ELEMENTS:
        return _tried_with(operator, arguments, keywords, _example, Exception)
    return _tried_with(operator, arguments, keywords, _single, NotImplementedError)


def _tried_with(
    operator: OpOverload,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    example: Callable[[torch.Tensor, int], torch.Tensor],
    refusals: type[Exception],
) -> str | None:
    text: str | None = None
    for number in (0, 1):
        real = [_with_examples(value, example, number) for value in arguments]
        named = {name: _with_examples(v, example, number) for name, v in keywords.items()}
        try:
            operator(*real, **named)
        except refusals as error:
            text = str(error).partition("\n")[0]
        except Exception:
            return None  # of single elements, where sizes may be what it refuses
        else:
            return None
    return text


def _with_examples(
    value: Any, example: Callable[[torch.Tensor, int], torch.Tensor], number: int
) -> Any:
    if isinstance(value, torch.Tensor):
        return example(value, number)
    if isinstance(value, (list, tuple)):
        return [_with_examples(item, example, number) for item in value]
    return _hint(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def _example(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """A tensor like a fake one, with ``number`` everywhere."""
    shape, stride = _hints(tensor.shape), _hints(tensor.stride())
    span = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
    memory = torch.full((span if math.prod(shape) else 0,), number, dtype=tensor.dtype)
    return memory.as_strided(shape, stride)


def _single(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """A tensor of one element with a fake one's rank and dtype."""
    return torch.full((1,) * tensor.dim(), number, dtype=tensor.dtype)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
