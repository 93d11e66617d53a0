"""Sets and frozen sets."""

from __future__ import annotations

import operator as operators
import reprlib
import types
from collections.abc import Callable, Iterable
from typing import Any, Self

from weft_guards import ConstantSource, SetIs, SetOrderIs, Source, TypeIs, is_constant, iter_set

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.hashing import KeyOf, element_key, hashed_key
from ...variables.keys import HashedKey
from ...variables.python_protocols import drained, find_raw, owner_of, storage_of
from ..builtins.methods import ContainerVariable
from ..iterators.builtin_iterators import SequenceIteratorVariable
from ..table import method_model, method_models

_Members = set[HashedKey] | frozenset[HashedKey]


class SetVariable(ContainerVariable):
    """An exact set.

    ``members`` is a real set of keys that hash as the program's objects do, changed by the operations that
    the program makes: it iterates in the order in which the program's set does.  That order is unknown of
    one that holds objects hashed by address; that of a set from outside is guarded if it is asked for, and
    unknown once the set has changed.  A set from outside that is only added to or discarded from is not read.
    """

    kind: type = set

    def __init__(self, members: _Members | None = None) -> None:
        self._members: Any = self.kind() if members is None else members
        self._unread: Any = None
        self._journal: list[tuple[Callable[[Any, Any], None], HashedKey]] = []
        self._found: tuple[Any, ...] = ()  # what a set from outside gave, in its order
        self._found_keys: list[HashedKey] = []
        self.order_known = True
        self.changes = 0
        self.owner: Variable | None = None  # the instance whose storage it is

    @classmethod
    def of(
        cls, evaluator: Evaluator, elements: Iterable[Variable | None], key: KeyOf = element_key
    ) -> Self:
        keys = (key(evaluator, element) for element in elements if element is not None)
        return cls(cls.kind(list(keys)))

    @classmethod
    def from_object(cls, value: Any, source: Source) -> Self:
        variable = cls()
        variable.source = source
        variable._unread = value
        variable.order_known = False
        return variable

    def members(self, evaluator: Evaluator) -> _Members:
        """The keys; those of a set from outside are guarded."""
        if self._unread is not None:
            value, self._unread = tuple(iter_set(self._unread)), None
            assert self.source is not None
            self._found = value
            if all(map(is_constant, value)):
                evaluator.guard(self.source, SetIs(frozenset(value)))
            elif all(isinstance(item, _KNOWN_BY_IDENTITY) or is_constant(item) for item in value):
                evaluator.guard(self.source, SetOrderIs(self._found))
            else:
                raise Unsupported("set of objects that are not constants", self.source.name())
            label = f"an element of {self.source.name()}"
            wrap = evaluator.builder.wrap
            self._found_keys = [
                element_key(evaluator, wrap(item, ConstantSource(label, item, weak=True)))
                for item in value
            ]
            self._members = self.kind(self._found_keys)
            for change, key in self._journal:
                change(self._members, key)
        members: _Members = self._members
        return members

    def members_in_order(self) -> list[HashedKey]:
        """The keys of a set made during evaluation."""
        return list(self._members)

    def elements(self, evaluator: Evaluator) -> list[Variable]:
        """The elements in no order that means anything."""
        return [member.variable for member in self.members(evaluator)]

    def is_ordered(self, evaluator: Evaluator) -> bool:
        """Whether ``<`` puts the elements of an exact set in one order: numbers, or strings."""
        elements = self.elements(evaluator)
        kinds = {variable.python_type() for variable in elements if variable.is_constant()}
        return len(kinds) == 1 and kinds <= {int, str} and len(elements) == self.length(evaluator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        members = self.members(evaluator)
        if self.source is not None and not self._journal and len(members) > 1:
            evaluator.guard(self.source, SetOrderIs(self._found))
            return [key.variable for key in self._found_keys]
        known = self.order_known and all(member.has_known_hash() for member in members)
        if len(members) > 1 and not known:
            raise Unsupported("iteration over a set", repr(self), "its order is not known")
        return self.elements(evaluator)

    def iterator(self, evaluator: Evaluator) -> Variable:
        return SetIteratorVariable(self, self.iterate(evaluator))

    def length(self, evaluator: Evaluator) -> int:
        return len(self.members(evaluator))

    def contains(self, evaluator: Evaluator, item: Variable) -> bool:
        return sought_key(evaluator, item) in self.members(evaluator)

    def snapshot(self) -> Any:
        if self._unread is not None:
            raise Unsupported("value is not a constant", repr(self))
        return self.kind(member.variable.snapshot() for member in self._members)

    def printable(self, evaluator: Evaluator) -> Any:
        items = [item.printable(evaluator) for item in self.iterate(evaluator)]
        made = self.kind(items)
        return made if list(made) == items else _ordered(self.kind, items)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        storage = storage_of(other)
        if not isinstance(storage, SetVariable):
            return None
        left, right = (storage, self) if reflected else (self, storage)
        if operator in _COMPARISONS:
            compare = _COMPARISONS[operator]
            return ConstantVariable(compare(left.members(evaluator), right.members(evaluator)))
        if operator in _IN_PLACE and self.kind is set:
            self.replace(evaluator, _IN_PLACE[operator], storage)
            return owner_of(self)
        if operator in _COMBINATIONS:
            combine = _COMBINATIONS[operator]
            return left.combined(evaluator, combine, right)
        return None

    def combined(
        self, evaluator: Evaluator, combine: Callable[[Any, Any], Any], other: SetVariable
    ) -> SetVariable:
        """A new set, by an operator on the keys."""
        result = type(self)(combine(self.members(evaluator), other.members(evaluator)))
        result.order_known = self.order_known and other.order_known
        return result

    # Writing.

    def change(
        self, evaluator: Evaluator, change: Callable[[Any, Any], None], key: HashedKey
    ) -> None:
        """``set.add`` or ``set.discard``."""
        self.changes += 1
        if self.source is not None:
            self._journal.append((change, key))
            evaluator.side_effects.mutated(self)
        if self._unread is None:
            change(self._members, key)

    def replace(
        self, evaluator: Evaluator, combine: Callable[[Any, Any], Any], other: SetVariable
    ) -> None:
        """An operator in place."""
        self.changes += 1
        before = set(self.members(evaluator))
        self._members = combine(self._members, other.members(evaluator))
        self.order_known = self.order_known and other.order_known
        if self.source is not None:
            for key in before - self._members:
                self._journal.append((set.discard, key))
            for key in self._members - before:
                self._journal.append((set.add, key))
            evaluator.side_effects.mutated(self)

    # Emission.

    def emit_mutation(self, emitter: Emitter) -> None:
        for change, key in self._journal:
            emitter.run_call(change, owner_of(self), key.emitted())

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self.kind)
        emitter.load_elements("tuple", [member.emitted() for member in self._members])
        emitter.call(1)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"Set({[member.variable for member in self._members]!r})"


class FrozenSetVariable(SetVariable):
    """An exact frozenset."""

    kind = frozenset

    def is_constant(self) -> bool:
        return self._unread is None and all(m.variable.is_constant() for m in self._members)

    def as_constant(self) -> Any:
        return frozenset(member.variable.as_constant() for member in self._members)


_KNOWN_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType)

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operators.eq, "ne": operators.ne, "lt": operators.lt, "le": operators.le, "gt": operators.gt,
    "ge": operators.ge,
}  # fmt: skip
_COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operators.and_, "or": operators.or_, "sub": operators.sub, "xor": operators.xor,
}  # fmt: skip
_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "iand": operators.iand, "ior": operators.ior, "isub": operators.isub, "ixor": operators.ixor,
}  # fmt: skip


def _ordered(kind: type, items: list[Any]) -> Any:
    """What is printed as an exact set whose table, of another history, gives the elements in this order."""
    text = f"{{{', '.join(map(repr, items))}}}"
    text = text if kind is set else f"frozenset({text})"
    return type(kind.__name__, (kind,), {"__repr__": lambda self: text})(items)


class SetIteratorVariable(SequenceIteratorVariable):
    """An iterator over a set: RuntimeError once its size changes."""

    kind: Any = type(iter(set()))

    def __init__(self, iterable: SetVariable, elements: list[Variable]) -> None:
        super().__init__(iterable, elements)
        self._set = iterable
        self._changes = iterable.changes
        self._count: int | None = len(elements)  # None once it has failed

    def python_type(self) -> type:
        return type(iter(set()))

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if self.position > len(self.elements):  # it has ended
            return None
        if self._set.length(evaluator) != self._count:
            self._count = None
            evaluator.raise_error(RuntimeError, "Set changed size during iteration")
        if self._set.changes != self._changes:
            raise Unsupported("set changed during iteration", repr(self.iterable))
        element = super().next_or_none(evaluator)
        self.position += element is None
        return element

    def length_hint(self, evaluator: Evaluator) -> int | None:
        is_whole = self._set.length(evaluator) == self._count
        return max(len(self.elements) - self.position, 0) if is_whole else 0


def sought_key(evaluator: Evaluator, item: Variable) -> HashedKey:
    """The key that a set is asked for: a set without a hash is taken for a frozen one."""
    storage = storage_of(item)
    if type(storage) is SetVariable and find_raw(item.python_type(), "__hash__") is None:
        item = FrozenSetVariable(frozenset(storage.members(evaluator)))
    return element_key(evaluator, item)


def as_set(evaluator: Evaluator, iterable: Variable, key: KeyOf = element_key) -> SetVariable:
    """The elements of any iterable as a set."""
    storage = storage_of(iterable)
    if isinstance(storage, SetVariable):
        return storage
    return SetVariable.of(evaluator, drained(evaluator, iterable.iterator(evaluator)), key)


def new_set(evaluator: Evaluator, kind: type[SetVariable], iterable: Variable | None) -> Variable:
    """``set(iterable)`` or ``frozenset(iterable)``; one of a set copies its table."""
    if iterable is None:
        return kind()
    storage = storage_of(iterable)
    if isinstance(storage, SetVariable):
        is_frozen = kind is FrozenSetVariable and type(storage) is FrozenSetVariable
        if is_frozen and storage.owner is None:
            return storage
        copied = kind(kind.kind(storage.members(evaluator)))
        copied.order_known = storage.order_known
        return copied
    return kind.of(evaluator, drained(evaluator, iterable.iterator(evaluator)))


@method_model("copy", set, frozenset)
def _copy(evaluator: Evaluator, self: SetVariable, /) -> Variable:
    return new_set(evaluator, type(self), self)


# Methods that hash what they are given without making it an element.
_ONLY_HASHES = ("intersection", "intersection_update", "issubset")


_COMBINED = {
    "union": "or", "intersection": "and", "difference": "sub", "symmetric_difference": "xor",
    "intersection_update": "iand", "difference_update": "isub", "symmetric_difference_update": "ixor",
}  # fmt: skip
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "issubset": operators.le,
    "issuperset": operators.ge,
    "isdisjoint": lambda left, right: left.isdisjoint(right),
}


def _other(evaluator: Evaluator, name: str, iterable: Variable) -> SetVariable:
    return as_set(evaluator, iterable, hashed_key if name in _ONLY_HASHES else element_key)


@method_models((name for name in _COMBINED if not name.endswith("update")), set, frozenset)
def _combined(name: str, evaluator: Evaluator, self: SetVariable, *iterables: Variable) -> Variable:
    result = self.combined(evaluator, operators.or_, type(self)())
    for iterable in iterables:
        other = _other(evaluator, name, iterable)
        result = result.combined(evaluator, _COMBINATIONS[_COMBINED[name]], other)
    return result


@method_models((name for name in _COMBINED if name.endswith("update")), set)
def _updated(name: str, evaluator: Evaluator, self: SetVariable, *iterables: Variable) -> None:
    for iterable in iterables:
        other = _other(evaluator, name, iterable)
        self.replace(evaluator, _IN_PLACE[_COMBINED[name]], other)


@method_models(_COMPARED, set, frozenset)
def _compared(
    name: str, evaluator: Evaluator, self: SetVariable, iterable: Variable, /
) -> Variable:
    members = _other(evaluator, name, iterable).members(evaluator)
    return ConstantVariable(_COMPARED[name](self.members(evaluator), members))


@method_model("update", set)
def _update(evaluator: Evaluator, self: SetVariable, *iterables: Variable) -> None:
    for iterable in iterables:
        storage = storage_of(iterable)
        if isinstance(storage, SetVariable):
            self.replace(evaluator, operators.ior, storage)
            continue
        for item in drained(evaluator, iterable.iterator(evaluator)):
            self.change(evaluator, set.add, element_key(evaluator, item))


@method_models(("add", "discard"), set)
def _change(name: str, evaluator: Evaluator, self: SetVariable, item: Variable, /) -> None:
    key = element_key if name == "add" else sought_key
    self.change(evaluator, getattr(set, name), key(evaluator, item))


@method_model("remove", set)
def _remove(evaluator: Evaluator, self: SetVariable, item: Variable, /) -> None:
    from ..exceptions.exception_objects import ExceptionVariable

    key = sought_key(evaluator, item)
    if key not in self.members(evaluator):
        evaluator.raise_exception(ExceptionVariable(KeyError, [item]))
    self.change(evaluator, set.discard, key)


@method_model("pop", set)
def _pop(evaluator: Evaluator, self: SetVariable, /) -> Variable:
    if not self.members(evaluator):
        evaluator.raise_error(KeyError, "pop from an empty set")
    first = self.iterate(evaluator)[0]
    self.change(evaluator, set.discard, element_key(evaluator, first))
    return first


@method_model("clear", set)
def _clear(evaluator: Evaluator, self: SetVariable, /) -> None:
    self.replace(evaluator, operators.iand, SetVariable())


@register_wrapper(set, frozenset)
def _wrap_set(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(type(value)))
    family = SetVariable if type(value) is set else FrozenSetVariable
    return family.from_object(value, source)
