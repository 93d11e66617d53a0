"""Predicates: what must hold of the value at a source for compiled code to be used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Predicate:
    """Base class of all predicates."""


@dataclass(frozen=True)
class TypeIs(Predicate):
    """``type(value) is expected``."""

    expected: type


@dataclass(frozen=True, eq=False)
class IsObject(Predicate):
    """``value is expected``; holds a weak reference where the object allows one and ``weak`` is set.

    A check whose object has died fails for good.
    """

    expected: Any
    weak: bool = False


@dataclass(frozen=True, eq=False)
class EqualsConstant(Predicate):
    """Same type and equal, recursively for tuples and frozensets; NaN equals NaN, 0.0 differs from -0.0.

    Constants: None, bool, int, float, complex, str, bytes, Ellipsis, slices, enum members, torch dtype,
    device, layout, memory format and torch.Size, and tuples and frozensets of these.
    """

    expected: Any


@dataclass(frozen=True)
class LengthIs(Predicate):
    """``len(value) == expected``, of an exact list, tuple, dict, set or through ``__len__``."""

    expected: int


@dataclass(frozen=True, eq=False)
class DictKeysAre(Predicate):
    """The dict's keys, in order: each the same object or equal to the expected one, of the same type."""

    expected: tuple[Any, ...]


@dataclass(frozen=True)
class DictContains(Predicate):
    """``(key in value) is present`` for an exact dict, such as an instance's ``__dict__``."""

    key: Any
    present: bool


@dataclass(frozen=True)
class HasAttribute(Predicate):
    """``hasattr(value, attribute) is present``."""

    attribute: str
    present: bool


@dataclass(frozen=True)
class TensorMetadata:
    """What of a tensor compiled code relies on.

    ``size`` and ``stride`` in elements, None in a place that may vary; ``stride`` None where the strides
    do not matter.  ``python_type`` is compared exactly (Tensor, Parameter, a subclass).
    """

    python_type: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...] | None
    layout: torch.layout = torch.strided
    is_conjugate: bool = False
    is_negative: bool = False
    is_inference: bool = False


@dataclass(frozen=True)
class TensorMatches(Predicate):
    """The value is a tensor with this metadata."""

    expected: TensorMetadata


@dataclass(frozen=True)
class GlobalState:
    """Interpreter-wide state of torch that changes what code computes; ``current()`` reads it."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # (device type, enabled, dtype)
    autocast_cache_enabled: bool
    default_dtype: torch.dtype
    default_device: str | None
    deterministic_algorithms: bool
    torch_function_modes: int  # depth of the mode stack


@dataclass(frozen=True)
class GlobalStateIs(Predicate):
    """The interpreter-wide state equals ``expected``; the guard's source is :class:`GlobalStateSource`."""

    expected: GlobalState


@dataclass(frozen=True)
class NotAliased(Predicate):
    """The value is not the same object as the one at ``other`` (a source)."""

    other: Any


@dataclass(frozen=True)
class SameObject(Predicate):
    """The value is the same object as the one at ``other`` (a source)."""

    other: Any
