"""Predicates on what an object is: its type, its identity, its value if it is a constant, its attributes."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from .. import _torch
from ..constants import constant_key, constants_equal, is_constant
from ..operations import NativeStep, Operation, Registers
from ..sources import InstanceDictSource, Scope, Source
from .base import Predicate, short_text, type_name

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: instances may be given another class


def object_text(value: object) -> str:
    """An object by kind, name or shape, and address: telling, of one line, without running its own code.

    Not even its class is asked for by ``isinstance``, which reads ``__class__``.
    """
    known: Any = value
    kind = type(value)
    if value is None or value is _DEAD:
        return repr(value)
    if issubclass(kind, torch.Tensor):
        with _torch.without_torch_function():
            what = f"{kind.__name__} of shape {tuple(known.shape)}"
    elif issubclass(kind, type):
        what = f"class {known.__qualname__}"
    elif kind in (FunctionType, BuiltinFunctionType):
        what = f"function {known.__qualname__}"
    elif kind is ModuleType:
        what = f"module {known.__name__}"
    else:
        what = f"object of {type_name(kind)}"
    return f"{what} at {id(value):#x}"


@dataclass(frozen=True)
class TypeIs(Predicate):
    """``type(value) is expected``."""

    expected: type

    cost = 1
    advice = "pass values of one type"

    def holds(self, value: Any, scope: Scope) -> bool:
        return type(value) is self.expected

    def expected_text(self) -> str:
        return f"type {type_name(self.expected)}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"type {type_name(type(value))}"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_TYPE, registers.own, 0, self.expected

    @property
    def is_lasting(self) -> bool:
        return not self.expected.__flags__ & _HEAP_TYPE


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

    cost = 1
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

    def references(self) -> Iterable[weakref.ref[Any]]:
        return () if self.reference is None else (self.reference,)

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

    def hint(self, source: Source, value: Any) -> str:
        if callable(value):
            return "make the function, class or module once, outside the loop that calls the compiled one"
        return "pass the same object in every call"

    def native_step(self, registers: Registers) -> NativeStep:
        if self.weak:
            return Operation.CHECK_WEAK, registers.own, 0, self.reference
        return Operation.CHECK_IDENTITY, registers.own, 0, self.expected

    @property
    def is_lasting(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class IsNotObject(Predicate):
    """``value is not excluded``, such as None."""

    excluded: Any

    cost = 1

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is not self.excluded

    def identity(self) -> Hashable:
        return id(self.excluded)

    def expected_text(self) -> str:
        return f"anything but {short_text(self.excluded)}"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_NOT_IDENTITY, registers.own, 0, self.excluded

    @property
    def is_lasting(self) -> bool:
        return True


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

    cost = 2

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
        if not is_constant(value):  # its ``repr`` may be the program's
            return object_text(value)
        return f"{short_text(value)} of type {type_name(type(value))}"

    def hint(self, source: Source, value: Any) -> str:
        if type(value) in (int, float):
            kind = "integer" if type(value) is int else "finite float"
            return (
                f"nothing, mostly: once it has changed, code takes any {kind}, unless the program needs this "
                "very one or was compiled with dynamic=False"
            )
        if isinstance(source, InstanceDictSource) and source.key == "training":
            return "call train() and eval() rarely; each mode is compiled once"
        return "keep it the same between calls, or read it outside the compiled function"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_CONSTANT, registers.own, 0, self.expected

    def implies_type(self, kind: type) -> bool:
        return type(self.expected) is kind

    @property
    def is_lasting(self) -> bool:
        return True


@dataclass(frozen=True)
class HasAttribute(Predicate):
    """``hasattr(value, attribute) is present``."""

    attribute: str
    present: bool

    cost = 8
    advice = "set the attribute before the first call"

    def holds(self, value: Any, scope: Scope) -> bool:
        return hasattr(value, self.attribute) is self.present

    def expected_text(self) -> str:
        return f"{'the' if self.present else 'no'} attribute {self.attribute!r}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{'no' if self.present else 'the'} such attribute"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_ATTRIBUTE, registers.own, int(self.present), self.attribute


@dataclass(frozen=True)
class NotAliased(Predicate):
    """The value is not the same object as the one at ``other`` (a source)."""

    other: Source

    cost = 1
    advice = "pass two objects, as in the first call"

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is not self.other.evaluate(scope)

    def expected_text(self) -> str:
        return f"another object than {self.other.name()}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return "the same object"

    def sources(self) -> tuple[Source, ...]:
        return (self.other,)

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_DISTINCT, registers.own, registers.of(self.other), None


@dataclass(frozen=True)
class SameObject(Predicate):
    """The value is the same object as the one at ``other`` (a source)."""

    other: Source

    cost = 1
    advice = "pass one object for both, as in the first call"

    def holds(self, value: Any, scope: Scope) -> bool:
        return value is self.other.evaluate(scope)

    def expected_text(self) -> str:
        return f"the same object as {self.other.name()}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return "another object"

    def sources(self) -> tuple[Source, ...]:
        return (self.other,)

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_SAME, registers.own, registers.of(self.other), None
