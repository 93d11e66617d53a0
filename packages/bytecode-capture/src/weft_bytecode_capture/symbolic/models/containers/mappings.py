"""Dictionaries: dict, OrderedDict, defaultdict, Counter, mapping proxies, and their views."""

from __future__ import annotations

import collections
import gc
import itertools
import reprlib
import types
from collections.abc import Mapping
from typing import Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    DictKeysAre,
    DictKeySource,
    HasAttribute,
    ItemSource,
    LengthIs,
    Source,
    TypeIs,
    is_weak,
    weakly,
)

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.hashing import are_silent, entry_key
from ...variables.keys import HashedKey
from ...variables.operations import values_equal
from ...variables.python_protocols import find_raw, owner_of, storage_of
from ..builtins.methods import ContainerVariable
from ..objects.finalizers import require_no_finalizer
from ..objects.opaque import RefusedVariable
from .sequences import TupleVariable

_OWN_ITERATORS = (dict.__iter__, collections.OrderedDict.__iter__)  # in the order of insertion


def _no_place(position: int) -> None:
    return None


class DictVariable(ContainerVariable):
    """A dict, or a dict subclass's storage.

    ``entries`` maps hashed keys to values, in order.  For a dict from outside, ``unread`` is the dict
    itself: keys are looked up in it, each look-up guarded, until something needs all keys.
    """

    kind: type[dict[Any, Any]] = dict

    def __init__(
        self, entries: dict[HashedKey, Variable] | None = None, source: Source | None = None
    ) -> None:
        self.entries: dict[HashedKey, Variable] = {} if entries is None else entries
        self.source = source
        self.unread: Mapping[Any, Any] | None = None
        self.original: Mapping[Any, Any] | None = None
        self.owner: Variable | None = None  # the instance whose storage it is
        self.deleted: set[HashedKey] = set()
        self.written: set[HashedKey] = set()
        self.removals = 0

    @classmethod
    def from_object(cls, value: Mapping[Any, Any], source: Source) -> DictVariable:
        variable = cls({}, source)
        variable.unread = variable.original = value
        return variable

    def _require_apart_from_names(self, evaluator: Evaluator, *, writes: bool = False) -> None:
        """Refuse a module's dictionary where a global name of the program may mean the same entry."""
        scope = self.original
        if type(scope) is not dict or "__builtins__" not in scope:
            return
        if writes or evaluator.state.module_globals(scope).written:
            raise Unsupported("write to a module's dictionary", str(scope.get("__name__")))

    # Reading.

    def all_entries(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        """Every entry; guards the keys of a dict from outside."""
        self._require_apart_from_names(evaluator)
        if self.unread is not None:
            values, self.unread = self.unread, None
            assert self.source is not None
            keys = tuple(values)
            evaluator.guard(self.source, DictKeysAre(keys))
            place = self._key_place if type(values).__iter__ in _OWN_ITERATORS else _no_place
            read = self.entries
            entries: dict[HashedKey, Variable] = {}
            for position, (key, value) in enumerate(values.items()):
                hashed = entry_key(evaluator, self._wrap_key(evaluator, key, place(position)))
                if hashed in read:
                    entries[hashed] = read[hashed]
                else:
                    entries[hashed] = evaluator.builder.wrap(value, ItemSource(self.source, key))
            self.entries = entries
        return self.entries

    def _key_place(self, position: int) -> Source | None:
        assert self.source is not None
        return DictKeySource(self.source, position)

    def _wrap_key(self, evaluator: Evaluator, key: Any, place: Source | None) -> Variable:
        # The guard on the keys knows them by identity or equality.
        if isinstance(key, tuple):
            known = evaluator.builder.held(key)
            if known is None:
                places = [place if place is None else ItemSource(place, n) for n in range(len(key))]
                parts = map(self._wrap_key, itertools.repeat(evaluator), key, places)
                known = TupleVariable(list(parts))
                # A constant of a tuple with objects known weakly would give an equal one.
                source = place if is_weak(weakly(key)) else ConstantSource("a key", key)
                known.source = source
                if source is not None:
                    evaluator.builder.remember(key, known, source)
            return known
        return evaluator.wrap_known(key, weak=True)

    def lookup(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        """The value of a key; None if absent."""
        self._require_apart_from_names(evaluator)
        hashed = entry_key(evaluator, key)
        found = self.entries.get(hashed)
        if found is not None:
            return found
        plain = hashed.python_key
        if plain is None:
            self._require_no_address(hashed)
        if self.unread is None:
            return None
        if plain is None:
            return self.all_entries(evaluator).get(hashed)
        assert self.source is not None
        present = plain[0] in self.unread
        if not present:
            self._guard_contains(evaluator, plain[0], False)
            return None
        value = evaluator.builder.wrap(self.unread[plain[0]], ItemSource(self.source, plain[0]))
        self.entries[hashed] = value
        return value

    def _guard_contains(self, evaluator: Evaluator, key: Any, present: bool) -> None:
        assert self.source is not None
        if self.kind in (dict, collections.OrderedDict, collections.defaultdict):
            evaluator.guard(self.source, DictContains(key, present))
        else:
            evaluator.guard(self.source, DictKeysAre(tuple(self.unread or ())))

    def contains(self, evaluator: Evaluator, key: Variable) -> bool:
        self._require_apart_from_names(evaluator)
        hashed = entry_key(evaluator, key)
        if hashed in self.entries:
            return True
        plain = hashed.python_key
        if plain is None:
            self._require_no_address(hashed)
        if self.unread is None:
            return False
        if plain is None:
            return hashed in self.all_entries(evaluator)
        present = plain[0] in self.unread
        self._guard_contains(evaluator, plain[0], present)
        return present

    def _require_no_address(self, key: HashedKey) -> None:
        """Refuse to look for an address in a dict that has had keys before this call."""
        if self.original and key.has_address():
            raise Unsupported("id()", f"{key!r} looked for in {self!r}")

    def length(self, evaluator: Evaluator) -> int:
        self._require_apart_from_names(evaluator)
        if self.unread is not None and self.source is not None:
            evaluator.guard(self.source, LengthIs(len(self.unread)))
            return len(self.unread)
        return len(self.entries)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return [hashed.variable for hashed in self.all_entries(evaluator)]

    def iterator(self, evaluator: Evaluator) -> Variable:
        from .mapping_methods import DictIteratorVariable

        return DictIteratorVariable(evaluator, self, "keys")

    def snapshot(self) -> Any:
        if self.unread is not None:
            raise Unsupported("value is not a constant", repr(self))
        if self.kind not in (dict, collections.OrderedDict):
            raise Unsupported("value is not a constant", repr(self))
        return self.kind(
            (hashed.variable.snapshot(), value.snapshot()) for hashed, value in self.entries.items()
        )

    def printable(self, evaluator: Evaluator) -> Any:
        if type(self) is not DictVariable:
            return self.snapshot()
        return {
            key.variable.printable(evaluator): value.printable(evaluator)
            for key, value in self.all_entries(evaluator).items()
        }

    # Writing.

    def mutate(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        self._require_apart_from_names(evaluator, writes=True)
        entries = self.all_entries(evaluator)
        if self.source is not None:
            evaluator.side_effects.mutated(self)
        return entries

    def store(self, evaluator: Evaluator, key: Variable, value: Variable) -> None:
        self._require_apart_from_names(evaluator, writes=True)
        hashed = entry_key(evaluator, key)
        if self.unread is not None and hashed.python_key is not None:
            # Writing one key of a dict from outside needs no knowledge of the others.
            present = hashed.python_key[0] in self.unread
            if not present:
                self.mutate(evaluator)
            else:
                self._guard_contains(evaluator, hashed.python_key[0], True)
                evaluator.side_effects.mutated(self)
        else:
            self.mutate(evaluator)
        self._let_go(hashed)
        self.entries[hashed] = value
        self.written.add(hashed)

    def remove(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        """Take a key out; gives its value, None if absent."""
        if not self.contains(evaluator, key):
            return None
        hashed = entry_key(evaluator, key)
        self._let_go(hashed)
        value = self.mutate(evaluator).pop(hashed)
        self.removals += 1
        self.deleted.add(hashed)
        self.written.discard(hashed)
        return value

    def clear(self, evaluator: Evaluator) -> None:
        entries = self.mutate(evaluator)
        for hashed in entries:
            self._let_go(hashed)
        self.deleted.update(entries)
        self.written.clear()
        self.removals += 1
        entries.clear()

    def _let_go(self, key: HashedKey) -> None:
        """The dict's own value of a key, if it had one, is about to be replaced or taken out."""
        if self.original is not None and key.python_key is not None:
            require_no_finalizer(self.original.get(key.python_key[0]), self)

    # Python's protocol.

    def missing(self, evaluator: Evaluator, key: Variable) -> Variable:
        """What ``self[key]`` gives for an absent key: KeyError."""
        from ..exceptions.exception_objects import ExceptionVariable

        evaluator.raise_exception(ExceptionVariable(KeyError, [key]))

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        storage = storage_of(other)
        if operator == "ior":
            evaluator.call_method(self, "update", other)
            return self
        if not isinstance(storage, DictVariable):
            return None
        if operator in ("eq", "ne"):
            return evaluator.wrap_constant(
                equal_dicts(evaluator, self, storage) == (operator == "eq")
            )
        if operator == "or":
            require_plain_reading(self)
            require_plain_reading(other)
            left, right = (storage, self) if reflected else (self, storage)
            result = self.new_like(dict(left.all_entries(evaluator)))
            result.entries.update(right.all_entries(evaluator))
            return result
        return None

    def new_like(self, entries: dict[HashedKey, Variable]) -> DictVariable:
        return type(self)(entries)

    # Emission.

    def emit_mutation(self, emitter: Emitter) -> None:
        assert self.original is not None
        for hashed in self.deleted:
            if hashed.python_key is not None and hashed.python_key[0] in self.original:
                emitter.run_call(self.kind.__delitem__, owner_of(self), hashed.emitted())
            elif hashed.python_key is None:
                raise Unsupported("deletion of a key that is not constant", repr(hashed))
        for hashed, value in self.entries.items():
            if hashed in self.written:
                emitter.run_call(self.kind.__setitem__, owner_of(self), hashed.emitted(), value)

    def emit_entries(self, emitter: Emitter) -> None:
        """Push a plain dict of the entries."""
        for hashed, value in self.entries.items():
            emitter.load_variable(hashed.emitted())
            emitter.load_variable(value)
        emitter.build("map", len(self.entries))

    def reconstruct(self, emitter: Emitter) -> None:
        self.emit_entries(emitter)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.entries.items())!r})"


class OrderedDictVariable(DictVariable):
    """``collections.OrderedDict``, which may have attributes beside its entries."""

    kind = collections.OrderedDict

    def __init__(
        self, entries: dict[HashedKey, Variable] | None = None, source: Source | None = None
    ) -> None:
        super().__init__(entries, source)
        self.attributes: dict[str, Variable] = {}  # given during evaluation

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        outside = self.source if self.owner is None else None
        if outside is not None and find_raw(self.kind, name) is None:
            own = vars(self.original)
            evaluator.guard(outside, HasAttribute(name, name in own))
            if name in own:
                return evaluator.builder.wrap(own[name], AttributeSource(outside, name))
        return super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        is_own = find_raw(self.kind, name) is not None
        if is_own or self.owner is not None or evaluator.graph.is_in_region:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        if self.source is not None:
            require_no_finalizer(vars(self.original).get(name), self)
            evaluator.side_effects.mutated(self)
        self.attributes[name] = value

    def all_attributes(self, evaluator: Evaluator) -> dict[str, Variable]:
        """The attributes by name, which a guard holds of one from outside; an instance's are its own."""
        if self.owner is not None:
            return {}
        own = vars(self.original) if self.source is not None else {}
        if self.source is not None:
            evaluator.guard(AttributeSource(self.source, "__dict__"), LengthIs(len(own)))
        return {name: self.get_attribute(evaluator, name) for name in (own | self.attributes)}

    def emit_mutation(self, emitter: Emitter) -> None:
        super().emit_mutation(emitter)
        for name, value in self.attributes.items():
            emitter.load_variable(value)
            emitter.load_variable(self)
            emitter.store_attribute(name)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.attributes:
            emitter.load_callable(_with_attributes)
        emitter.load_callable(self.kind)
        self.emit_entries(emitter)
        emitter.call(1)
        if self.attributes:
            emitter.load_map(self.attributes)
            emitter.call(2)


def _with_attributes(
    made: collections.OrderedDict[Any, Any], attributes: dict[str, Any]
) -> collections.OrderedDict[Any, Any]:
    made.__dict__.update(attributes)
    return made


class DefaultDictVariable(DictVariable):
    """``collections.defaultdict``."""

    kind = collections.defaultdict
    factory: Variable = ConstantVariable(None)

    def missing(self, evaluator: Evaluator, key: Variable) -> Variable:
        if self.factory.is_constant():
            return super().missing(evaluator, key)
        value = evaluator.call_function(self.factory, [])
        self.store(evaluator, key, value)
        return value

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return self.factory if name == "default_factory" else super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if name != "default_factory" or self.source is not None or evaluator.graph.is_in_region:
            super().set_attribute(evaluator, name, value)
        self.factory = value

    def printable(self, evaluator: Evaluator) -> Any:
        factory = self.factory.printable(evaluator)
        entries = self.all_entries(evaluator).items()
        plain = ((key.variable.printable(evaluator), v.printable(evaluator)) for key, v in entries)
        return collections.defaultdict(factory, plain)

    def new_like(self, entries: dict[HashedKey, Variable]) -> DictVariable:
        new = DefaultDictVariable(entries)
        new.factory = self.factory
        return new

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self.kind)
        emitter.load_variable(self.factory)
        self.emit_entries(emitter)
        emitter.call(2)


class AttributeDictVariable(DictVariable):
    """The ``__dict__`` of an object whose attributes are the only storage: ``all_entries`` gives them."""

    def lookup(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        return self.all_entries(evaluator).get(entry_key(evaluator, key))

    def contains(self, evaluator: Evaluator, key: Variable) -> bool:
        return self.lookup(evaluator, key) is not None

    def length(self, evaluator: Evaluator) -> int:
        return len(self.all_entries(evaluator))

    def snapshot(self) -> Any:
        raise Unsupported("value is not a constant", repr(self))

    def new_like(self, entries: dict[HashedKey, Variable]) -> DictVariable:
        return DictVariable(entries)


class MappingProxyVariable(DictVariable):
    """A read-only view of a dict, such as a class's ``__dict__``."""

    kind: Any = types.MappingProxyType

    def mutate(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        evaluator.raise_error(TypeError, "'mappingproxy' object does not support item assignment")

    def new_like(self, entries: dict[HashedKey, Variable]) -> DictVariable:
        return DictVariable(entries)

    def _require_apart_from_names(self, evaluator: Evaluator, *, writes: bool = False) -> None:
        """A proxy shows the dict behind it, which captured code may have changed by another path."""
        behind = gc.get_referents(self.original)
        for variable in evaluator.side_effects.mutated_variables():
            if not isinstance(variable, DictVariable):
                continue
            if any(variable.original is mapping for mapping in behind):
                raise Unsupported("mapping proxy after a change of its dict", repr(variable))


_READERS = ("__iter__", "__getitem__", "keys", "items")


def reads_as_dict(kind: type) -> bool:
    """Whether copying an instance of a subclass of dict asks none of its methods, as CPython decides.

    Copying looks at the iterator alone: where that is dict's own, the entries are taken directly.
    """
    return find_raw(kind, "__iter__") is vars(dict)["__iter__"] or _has_no_readers(kind)


def require_plain_reading(mapping: Variable) -> None:
    """Refuse to copy an instance by what it holds, where CPython asks its own methods."""
    owner = owner_of(mapping)
    if not reads_as_dict(owner.python_type()):
        raise Unsupported("method of a builtin type", f"copy of {owner!r}")


def _has_no_readers(kind: type) -> bool:
    """Whether a subclass of dict has no methods of its own that read it."""
    builtin = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
    return kind in builtin or all(
        find_raw(kind, name) in (vars(dict).get(name), vars(collections.OrderedDict).get(name))
        for name in _READERS
    )


def equal_dicts(evaluator: Evaluator, left: DictVariable, right: DictVariable) -> bool:
    """Equality of dicts; of two OrderedDicts order counts."""
    first, second = left.all_entries(evaluator), right.all_entries(evaluator)
    if len(first) != len(second):
        return False
    ordered = isinstance(left, OrderedDictVariable) and isinstance(right, OrderedDictVariable)
    if ordered and list(first) != list(second):
        return False
    for hashed, value in list(first.items()):
        other = second.get(hashed)
        if other is None or not values_equal(evaluator, value, other):
            return False
    return True


def new_keyword_dict(keywords: Mapping[str, Variable]) -> DictVariable:
    """A new dict with constant string keys."""
    return DictVariable(
        {HashedKey(ConstantVariable(name), (name,)): value for name, value in keywords.items()}
    )


def keyword_arguments(evaluator: Evaluator, variable: Variable) -> dict[str, Variable]:
    """The keyword arguments that ``**variable`` gives."""
    storage = storage_of(variable)
    if isinstance(storage, DictVariable) and reads_as_dict(variable.python_type()):
        pairs = [
            (hashed.variable, value) for hashed, value in storage.all_entries(evaluator).items()
        ]
    else:
        keys = variable.call_method(evaluator, "keys", [], {}).iterate(evaluator)
        pairs = [(key, variable.call_method(evaluator, "__getitem__", [key], {})) for key in keys]
    result = {}
    for key, value in pairs:
        if not (key.is_constant() and isinstance(key.as_constant(), str)):
            evaluator.raise_error(TypeError, "keywords must be strings")
        result[key.as_constant()] = value
    return result


_FAMILIES: dict[type, type[DictVariable]] = {
    family.kind: family
    for family in (DictVariable, OrderedDictVariable, DefaultDictVariable, MappingProxyVariable)
}


@register_wrapper(*_FAMILIES)
def _wrap_mapping(evaluator: Evaluator, value: Mapping[Any, Any], source: Source) -> Variable:
    """A mapping's variable; asking one whose keys compare in Python would run the user's code."""
    kind = type(value)
    behind = type(gc.get_referents(value)[0]) if kind is types.MappingProxyType else kind
    if not (issubclass(behind, dict) and _has_no_readers(behind)):
        return RefusedVariable(
            value, source, "container with reading methods of its own", source.name()
        )
    if not are_silent(dict.keys(value) if isinstance(value, dict) else value.keys()):
        return RefusedVariable(value, source, "key with methods of its own", source.name())
    evaluator.guard(source, TypeIs(kind))
    variable = _FAMILIES[kind].from_object(value, source)
    if isinstance(variable, DefaultDictVariable) and isinstance(value, collections.defaultdict):
        variable.factory = evaluator.builder.wrap(
            value.default_factory, AttributeSource(source, "default_factory")
        )
    return variable
