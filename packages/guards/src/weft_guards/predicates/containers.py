"""Predicates on what a container holds: its length, keys and members."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..constants import constant_key, is_constant, same_key
from ..operations import NativeStep, Operation, Registers
from ..sources import Scope
from ..weak_keys import WeakKey, is_weak, known_key, weak_references, weakly
from .base import Predicate, short_text, type_name


@dataclass(frozen=True)
class LengthIs(Predicate):
    """``len(value) == expected``, of an exact list, tuple, dict, set or through ``__len__``."""

    expected: int

    cost = 2
    advice = "keep its length; each length is compiled for itself"

    def holds(self, value: Any, scope: Scope) -> bool:
        return len(value) == self.expected

    def expected_text(self) -> str:
        return f"length {self.expected}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"length {len(value)}"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_LENGTH, registers.own, self.expected, None


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
    if not issubclass(type(value), dict | MappingProxyType):
        return False
    keys = list(value)
    return len(keys) == len(expected) and all(map(same_key, expected, keys))


def _weakly_known(keys: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(weakly, keys))


def _references(keys: Iterable[Any]) -> Iterator[WeakKey]:
    for key in keys:
        yield from weak_references(key)


def _loose_key(value: Any) -> Hashable:
    if is_weak(value):
        known: Hashable = value
        return known
    return constant_key(value) if is_constant(value) else ("is", id(value))


@dataclass(frozen=True, eq=False)
class DictKeysAre(Predicate):
    """The dict's keys, in order: each the same object or equal to the expected one, of the same type.

    Takes dicts, their subclasses and mapping proxies (``vars(cls)``).  Keys that are compared by identity are
    not kept alive.
    """

    expected: tuple[Any, ...]

    cost = 10
    advice = "keep its keys and their order"

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", _weakly_known(self.expected))

    def references(self) -> Iterator[WeakKey]:
        return _references(self.expected)

    def holds(self, value: Any, scope: Scope) -> bool:
        return keys_equal(self.expected, value)

    def identity(self) -> Hashable:
        return tuple(map(_loose_key, self.expected))

    def expected_text(self) -> str:
        return f"the keys {short_text(list(self.expected))}"

    def found_text(self, value: Any, scope: Scope) -> str:
        if issubclass(type(value), Mapping):
            return f"the keys {short_text(list(value))}"
        return f"type {type_name(type(value))}"

    def native_step(self, registers: Registers) -> NativeStep:
        weak = any(type(key) is WeakKey for key in self.expected)
        own_references = any(
            isinstance(key, weakref.ref) for key in self.expected if not is_weak(key)
        )
        return Operation.CHECK_KEYS, registers.own, int(weak and not own_references), self.expected

    @property
    def follows_from_keys(self) -> bool:
        return {str}.issuperset(map(type, self.expected))


def iter_set(value: Any) -> Iterator[Any]:
    """The members of a set or frozenset, whatever its class answers."""
    return set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value)


@dataclass(frozen=True, eq=False)
class SetIs(Predicate):
    """A set or frozenset of exactly these constants, each with its type; not kept alive."""

    expected: frozenset[Any]

    def __post_init__(self) -> None:
        constant_key(frozenset(self.expected))
        object.__setattr__(self, "expected", frozenset(_weakly_known(self.expected)))

    def references(self) -> Iterator[WeakKey]:
        return _references(self.expected)

    def holds(self, value: Any, scope: Scope) -> bool:
        if not issubclass(type(value), (set, frozenset)):
            return False
        found = _weakly_known(iter_set(value))
        return (
            len(found) == len(self.expected) and frozenset(map(_member_key, found)) == self._keys()
        )

    def _keys(self) -> frozenset[Hashable]:
        return frozenset(map(_member_key, self.expected))

    def identity(self) -> Hashable:
        return len(self.expected), self._keys()

    def expected_text(self) -> str:
        return f"a set of {short_text(set(self.expected))}"


def _member_key(member: Any) -> Hashable:
    known: Hashable = member if is_weak(member) else constant_key(member)
    return known


@dataclass(frozen=True, eq=False)
class SetOrderIs(Predicate):
    """A set or frozenset that iterates over these members in this order.

    Each member is the same object as the expected one, or a constant equal to it and of its type.
    """

    expected: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", _weakly_known(self.expected))

    def references(self) -> Iterator[WeakKey]:
        return _references(self.expected)

    def holds(self, value: Any, scope: Scope) -> bool:
        if not issubclass(type(value), (set, frozenset)):
            return False
        members = tuple(iter_set(value))
        return len(members) == len(self.expected) and all(map(same_key, self.expected, members))

    def identity(self) -> Hashable:
        return tuple(map(_loose_key, self.expected))

    def expected_text(self) -> str:
        return f"the members {short_text(list(self.expected))}, in this order"

    def found_text(self, value: Any, scope: Scope) -> str:
        if issubclass(type(value), (set, frozenset)):
            return f"the members {short_text(list(iter_set(value)))}"
        return f"type {type_name(type(value))}"


@dataclass(frozen=True)
class DictContains(Predicate):
    """``(key in value) is present`` for an exact dict, such as an instance's ``__dict__``, or a set."""

    key: Any
    present: bool

    cost = 3
    advice = "set the key before the first call"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", weakly(self.key))

    def references(self) -> Iterator[WeakKey]:
        return weak_references(self.key)

    def holds(self, value: Any, scope: Scope) -> bool:
        return (known_key(self.key) in value) is self.present

    def identity(self) -> Hashable:
        return _loose_key(self.key), self.present

    def expected_text(self) -> str:
        return f"{'the' if self.present else 'no'} key {short_text(self.key)}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{'no' if self.present else 'the'} such key"

    def native_step(self, registers: Registers) -> NativeStep | None:
        if is_weak(self.key) and type(self.key) is not WeakKey:
            return None
        number = int(self.present) + 2 * is_weak(self.key)
        return Operation.CHECK_CONTAINS, registers.own, number, self.key

    @property
    def follows_from_keys(self) -> bool:
        return type(self.key) is str
