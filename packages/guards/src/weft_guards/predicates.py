"""Predicates: what must hold of the value at a source for compiled code to be used again.

:meth:`Predicate.holds` is the meaning of a predicate; the native check computes the same and is tested
against it.  A predicate that raises does not hold.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch

from .constants import constant_key, constants_equal, is_constant, same_key
from .global_state import GlobalState
from .sources import Scope, Source
from .tensor_metadata import TensorMetadata


def short_text(value: object, limit: int = 120) -> str:
    """``repr(value)``, or the type where that fails, cut to ``limit`` characters."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def object_text(value: object) -> str:
    """An object by kind, name or shape, and address: telling, of one line, without running its ``repr``."""
    if value is None or value is _DEAD:
        return repr(value)
    if isinstance(value, torch.Tensor):
        what = f"{type(value).__name__} of shape {tuple(value.shape)}"
    elif isinstance(value, type):
        what = f"class {value.__qualname__}"
    elif isinstance(value, FunctionType | BuiltinFunctionType):
        what = f"function {value.__qualname__}"
    elif isinstance(value, ModuleType):
        what = f"module {value.__name__}"
    else:
        what = f"object of {_type_name(type(value))}"
    return f"{what} at {id(value):#x}"


def _type_name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


@dataclass(frozen=True)
class Predicate:
    """Base class of all predicates.  A further one defines :meth:`holds` and is checked in Python."""

    def holds(self, value: Any, scope: Scope) -> bool:
        raise NotImplementedError(type(self).__name__)

    def identity(self) -> Hashable:
        """Equal for two predicates of one type that say the same, while both live."""
        return self

    def expected_text(self) -> str:
        """What is expected, for a failure's message."""
        return str(self)

    def found_text(self, value: Any, scope: Scope) -> str:
        """What was found in its place."""
        return short_text(value)


@dataclass(frozen=True)
class TypeIs(Predicate):
    """``type(value) is expected``."""

    expected: type

    def holds(self, value: Any, scope: Scope) -> bool:
        return type(value) is self.expected

    def expected_text(self) -> str:
        return f"type {_type_name(self.expected)}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"type {_type_name(type(value))}"


class _Dead:
    def __repr__(self) -> str:
        return "<an object that has died>"


_DEAD = _Dead()


@dataclass(frozen=True, eq=False, init=False)
class IsObject(Predicate):
    """``value is expected``; holds a weak reference where the object allows one and ``weak`` is set.

    A check whose object has died fails for good.  Without ``weak`` the object is kept alive, because its
    address could otherwise become that of another one.
    """

    weak: bool
    _reference: Any

    def __init__(self, expected: Any, weak: bool = False) -> None:
        if weak:
            try:
                expected = weakref.ref(expected)
            except TypeError:  # its type has no room for weak references
                weak = False
        object.__setattr__(self, "weak", weak)
        object.__setattr__(self, "_reference", expected)

    @property
    def expected(self) -> Any:
        """The object; once a weak one has died, a placeholder that nothing else is."""
        if not self.weak:
            return self._reference
        value = self._reference()
        return _DEAD if value is None else value

    @property
    def reference(self) -> weakref.ref[Any] | None:
        """The weak reference, None when the object is held."""
        return self._reference if self.weak else None

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is self.expected and value is not _DEAD

    def identity(self) -> Hashable:
        # A dead weak reference has the same key as any other: both fail.
        return self.weak, id(self.expected)

    def expected_text(self) -> str:
        return object_text(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        return object_text(value)

    def __repr__(self) -> str:
        return f"IsObject({short_text(self.expected)}, weak={self.weak})"


@dataclass(frozen=True, eq=False)
class IsNotObject(Predicate):
    """``value is not excluded``, such as None."""

    excluded: Any

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is not self.excluded

    def identity(self) -> Hashable:
        return id(self.excluded)

    def expected_text(self) -> str:
        return f"anything but {short_text(self.excluded)}"


@dataclass(frozen=True, eq=False)
class IsOneOf(Predicate):
    """``value`` is one of ``objects``, by identity; the objects are kept alive."""

    objects: tuple[Any, ...]

    def holds(self, value: Any, scope: Scope) -> bool:
        return any(value is candidate for candidate in self.objects)

    def identity(self) -> Hashable:
        return frozenset(map(id, self.objects))

    def expected_text(self) -> str:
        return f"one of {short_text(self.objects)}"


@dataclass(frozen=True, eq=False)
class EqualsConstant(Predicate):
    """Same type and equal, recursively for tuples and frozensets; NaN equals NaN, 0.0 differs from -0.0.

    Constants: None, bool, int, float, complex, str, bytes, Ellipsis, NotImplemented, torch dtype, device,
    layout and memory format; tuples, named tuples, torch.Size, frozensets, slices and ranges of these;
    and, compared by identity, enum members, classes, functions and modules.

    :raises TypeError: ``expected`` is something else.
    """

    expected: Any

    def __post_init__(self) -> None:
        constant_key(self.expected)

    def holds(self, value: Any, scope: Scope) -> bool:
        return constants_equal(self.expected, value)

    def identity(self) -> Hashable:
        return constant_key(self.expected)

    def expected_text(self) -> str:
        return short_text(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        if type(value) is type(self.expected):
            return short_text(value)
        return f"{short_text(value)} of type {_type_name(type(value))}"


@dataclass(frozen=True)
class LengthIs(Predicate):
    """``len(value) == expected``, of an exact list, tuple, dict, set or through ``__len__``."""

    expected: int

    def holds(self, value: Any, scope: Scope) -> bool:
        return len(value) == self.expected

    def expected_text(self) -> str:
        return f"length {self.expected}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"length {len(value)}"


@dataclass(frozen=True)
class LengthHintIs(Predicate):
    """``operator.length_hint(value) == expected``: the items that a tuple's or list's iterator has left."""

    expected: int

    def holds(self, value: Any, scope: Scope) -> bool:
        return operator.length_hint(value, -1) == self.expected

    def expected_text(self) -> str:
        return f"{self.expected} items left"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{operator.length_hint(value, -1)} items left"


def keys_equal(expected: tuple[Any, ...], value: Any) -> bool:
    """Whether ``value`` is a mapping with these keys in this order."""
    if not isinstance(value, dict | MappingProxyType):
        return False
    keys = list(value)
    return len(keys) == len(expected) and all(map(same_key, expected, keys))


def _loose_key(value: Any) -> Hashable:
    return constant_key(value) if is_constant(value) else ("is", id(value))


@dataclass(frozen=True, eq=False)
class DictKeysAre(Predicate):
    """The dict's keys, in order: each the same object or equal to the expected one, of the same type.

    Takes dicts, their subclasses and mapping proxies (``vars(cls)``).
    """

    expected: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", tuple(self.expected))

    def holds(self, value: Any, scope: Scope) -> bool:
        return keys_equal(self.expected, value)

    def identity(self) -> Hashable:
        return tuple(map(_loose_key, self.expected))

    def expected_text(self) -> str:
        return f"the keys {short_text(list(self.expected))}"

    def found_text(self, value: Any, scope: Scope) -> str:
        if isinstance(value, Mapping):
            return f"the keys {short_text(list(value))}"
        return f"type {_type_name(type(value))}"


@dataclass(frozen=True, eq=False)
class SetIs(Predicate):
    """A set or frozenset of exactly these constants, each with its type."""

    expected: frozenset[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", frozenset(self.expected))
        constant_key(self.expected)

    def holds(self, value: Any, scope: Scope) -> bool:
        if type(value) not in (set, frozenset):
            return False
        return constants_equal(self.expected, frozenset(value))

    def identity(self) -> Hashable:
        return constant_key(self.expected)

    def expected_text(self) -> str:
        return f"a set of {short_text(set(self.expected))}"


@dataclass(frozen=True, eq=False)
class SetOrderIs(Predicate):
    """A set or frozenset that iterates over these members in this order.

    Each member is the same object as the expected one, or a constant equal to it and of its type.
    """

    expected: tuple[Any, ...]

    def holds(self, value: Any, scope: Scope) -> bool:
        if type(value) not in (set, frozenset) or len(value) != len(self.expected):
            return False
        return all(map(same_key, self.expected, value))

    def identity(self) -> Hashable:
        return tuple(map(_loose_key, self.expected))

    def expected_text(self) -> str:
        return f"the members {short_text(list(self.expected))}, in this order"

    def found_text(self, value: Any, scope: Scope) -> str:
        if type(value) in (set, frozenset):
            return f"the members {short_text(list(value))}"
        return f"type {_type_name(type(value))}"


@dataclass(frozen=True)
class DictContains(Predicate):
    """``(key in value) is present`` for an exact dict, such as an instance's ``__dict__``, or a set."""

    key: Any
    present: bool

    def holds(self, value: Any, scope: Scope) -> bool:
        return (self.key in value) is self.present

    def identity(self) -> Hashable:
        return _loose_key(self.key), self.present

    def expected_text(self) -> str:
        return f"{'the' if self.present else 'no'} key {short_text(self.key)}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{'no' if self.present else 'the'} such key"


@dataclass(frozen=True)
class HasAttribute(Predicate):
    """``hasattr(value, attribute) is present``."""

    attribute: str
    present: bool

    def holds(self, value: Any, scope: Scope) -> bool:
        return hasattr(value, self.attribute) is self.present

    def expected_text(self) -> str:
        return f"{'the' if self.present else 'no'} attribute {self.attribute!r}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{'no' if self.present else 'the'} such attribute"


@dataclass(frozen=True)
class TensorMatches(Predicate):
    """The value is a tensor with this metadata."""

    expected: TensorMetadata

    def holds(self, value: Any, scope: Scope) -> bool:
        return next(self.expected.differences(value), None) is None

    def expected_text(self) -> str:
        return str(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        differences = self.expected.differences(value)
        return "; ".join(f"{what} {found} instead of {mine}" for what, mine, found in differences)


@dataclass(frozen=True)
class GlobalStateIs(Predicate):
    """The interpreter-wide state equals ``expected``; the guard's source is :class:`GlobalStateSource`."""

    expected: GlobalState

    def holds(self, value: Any, scope: Scope) -> bool:
        return GlobalState.current() == self.expected

    def expected_text(self) -> str:
        differences = self.expected.differences(GlobalState.current())
        return ", ".join(f"{name} {mine}" for name, mine, _ in differences) or str(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        differences = self.expected.differences(GlobalState.current())
        return ", ".join(f"{name} {found}" for name, _, found in differences)


@dataclass(frozen=True)
class NotAliased(Predicate):
    """The value is not the same object as the one at ``other`` (a source)."""

    other: Source

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is not self.other.evaluate(scope)

    def expected_text(self) -> str:
        return f"another object than {self.other.name()}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return "the same object"


@dataclass(frozen=True)
class SameObject(Predicate):
    """The value is the same object as the one at ``other`` (a source)."""

    other: Source

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is self.other.evaluate(scope)

    def expected_text(self) -> str:
        return f"the same object as {self.other.name()}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return "another object"
