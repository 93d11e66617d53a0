"""Constants: which values are, and when two of them are the same constant.

The same constant means the same type and an equal value, with the parts of a float that ``==`` hides told
apart: NaN is NaN, and 0.0 is not -0.0.  A program specialised on one of two equal constants computes
what it would with the other.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch

from .weak_keys import KeyOfParts, WeakKey

_BY_VALUE: frozenset[type] = frozenset((
    bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented),
    torch.dtype, torch.layout, torch.memory_format,
))  # fmt: skip

_BY_IDENTITY: tuple[type, ...] = (
    type,
    enum.Enum,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
)


def _float_key(value: float) -> Hashable:
    # hex() keeps every bit of a number, the sign of zero too, and has one text for all NaNs.
    return float.hex(value) if value == value else "nan"


def _frozenset_key(value: frozenset[Any]) -> Hashable:
    # The count tells {nan} from a set of two NaN objects.
    return len(value), frozenset(map(constant_key, value))


_KEYS: dict[type, Callable[[Any], Hashable]] = {
    **{constant_type: lambda value: value for constant_type in _BY_VALUE},
    float: _float_key,
    complex: lambda value: (_float_key(value.real), _float_key(value.imag)),
    frozenset: _frozenset_key,
    slice: lambda value: tuple(map(constant_key, (value.start, value.stop, value.step))),
    range: lambda value: (value.start, value.stop, value.step),
    torch.device: lambda value: (value.type, value.index),
}


def _is_tuple_type(kind: type) -> bool:
    """Whether ``kind`` is tuple, torch.Size or a named tuple: its items are all there is to it."""
    return (
        kind is tuple or kind is torch.Size or (issubclass(kind, tuple) and "_fields" in vars(kind))
    )


def constant_key(value: Any) -> Hashable:
    """A hashable key, equal for two values if and only if they are the same constant.

    The key of a function, class, module or enum member is its identity, so it says something only while
    the value lives.

    :raises TypeError: ``value`` is not a constant, or holds something that is not.
    """
    kind = type(value)
    make = _KEYS.get(kind)
    if make is not None:
        return kind, make(value)
    if _is_tuple_type(kind):
        return kind, tuple(map(constant_key, tuple.__iter__(value)))
    if issubclass(kind, _BY_IDENTITY):
        return kind, "is", id(value)
    raise TypeError(f"a value of type {kind.__qualname__} is not a constant")


def is_constant(value: Any) -> bool:
    """Whether :func:`constant_key` takes the value."""
    if type(value) in _BY_VALUE:
        return True
    try:
        constant_key(value)
    except TypeError:
        return False
    return True


def constants_equal(expected: Any, value: Any) -> bool:
    """Whether ``value``, whatever it is, is the same constant as ``expected``, a constant."""
    if expected is value:
        return True
    if type(expected) is not type(value):
        return False
    try:
        return constant_key(expected) == constant_key(value)
    except TypeError:  # the other holds something that is not a constant, at some depth
        return False


def same_key(expected: Any, key: Any) -> bool:
    """Whether two keys are one: the same object, or of one type and one key to a dict.

    Constants are compared as constants.  Others must have equal hashes before they are compared, as in a
    dict: a tensor, whose ``==`` is elementwise, is a key by its identity.  ``expected`` may stand for a key
    that is known weakly, and so may ``key`` where both do.
    """
    if expected is key:
        return True
    if type(expected) is WeakKey:
        return expected() is key if type(key) is not WeakKey else expected == key
    if type(expected) is KeyOfParts:
        return expected.same(key) if type(key) is not KeyOfParts else expected == key
    if type(expected) is not type(key):
        return False
    if is_constant(expected):
        return constants_equal(expected, key)
    return hash(expected) == hash(key) and bool(expected == key)
