"""Methods of dicts, and their views as sequences of what they hold."""

from __future__ import annotations

import collections
import operator
import types
from typing import Any, NoReturn

from weft_guards import AttributeSource, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.operations import values_equal
from ...variables.python_protocols import COMPARISONS, drained, owner_of, storage_of
from ..builtins.methods import method_of
from ..iterators.builtin_iterators import IteratorVariable, SequenceIteratorVariable
from ..iterators.rebuilding import advanced_iterator
from ..objects.opaque import RefusedVariable
from ..table import method_model, method_models
from .mappings import (
    AttributeDictVariable,
    DictVariable,
    MappingProxyVariable,
    new_keyword_dict,
    reads_as_dict,
    require_plain_reading,
)
from .sequences import TupleVariable
from .sets import SetVariable, as_set

_WRITABLE = (dict, collections.OrderedDict, collections.defaultdict)
_READABLE: tuple[Any, ...] = (*_WRITABLE, types.MappingProxyType)


_ITERATORS: dict[str, type] = {
    "keys": type(iter({})), "values": type(iter({}.values())), "items": type(iter({}.items())),
}  # fmt: skip


class DictIteratorVariable(IteratorVariable):
    """An iterator over a dict's keys, values or items: RuntimeError once the dict's size changes."""

    def __init__(self, evaluator: Evaluator, mapping: DictVariable, name: str) -> None:
        self.mapping = mapping
        self.name = name
        self._keys = list(mapping.all_entries(evaluator))
        self._removals = mapping.removals
        self._position = 0
        self._ended = False

    def python_type(self) -> type:
        return _ITERATORS[self.name]

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if self._ended:
            return None
        entries = self.mapping.entries
        if isinstance(self.mapping, AttributeDictVariable):
            entries = self.mapping.all_entries(evaluator)
            if len(entries) == len(self._keys) and list(entries) != self._keys:
                raise Unsupported("dict changed during iteration", repr(self.mapping))
        if len(entries) != len(self._keys):
            self._keys = []  # it fails from now on, whatever the dict holds
            if not entries:
                raise Unsupported("dict changed during iteration", repr(self.mapping))
            evaluator.raise_error(RuntimeError, "dictionary changed size during iteration")
        if self.mapping.removals != self._removals:
            raise Unsupported("dict changed during iteration", repr(self.mapping))
        if self._position >= len(self._keys):
            self._ended = True
            return None
        key = self._keys[self._position]
        self._position += 1
        if self.name == "keys":
            return key.variable
        value = entries[key]
        return value if self.name == "values" else TupleVariable([key.variable, value])

    def rest(self, evaluator: Evaluator) -> list[Variable]:
        """What it has not given yet; it does not move on."""
        before = self._position, self._keys, self._ended
        found = drained(evaluator, self)
        self._position, self._keys, self._ended = before
        return found

    def remaining(self, evaluator: Evaluator) -> int | None:
        return len(self._keys) - self._position

    def length_hint(self, evaluator: Evaluator) -> int | None:
        is_whole = self.mapping.length(evaluator) == len(self._keys) and not self._ended
        return self.remaining(evaluator) if is_whole else 0

    def reconstruct(self, emitter: Emitter) -> None:
        unchanged = len(self.mapping.entries) == len(self._keys) or self._ended
        if self.mapping.removals != self._removals or not unchanged:
            raise Unsupported("dict changed during iteration", repr(self.mapping))
        emitter.load_call(
            advanced_iterator,
            DictViewVariable(self.mapping, self.name),
            self._position + self._ended,
        )


class DictViewVariable(Variable):
    """``keys()``, ``values()`` or ``items()`` of a dict; read when iterated."""

    def __init__(self, mapping: DictVariable, name: str, source: Source | None = None) -> None:
        self.mapping = mapping
        self.name = name
        self.source = source

    def python_type(self) -> type:
        return _VIEWS[self.name]

    def truth(self, evaluator: Evaluator) -> bool:
        return self.mapping.truth(evaluator)

    def length(self, evaluator: Evaluator) -> int:
        return self.mapping.length(evaluator)

    def iterator(self, evaluator: Evaluator) -> Variable:
        return DictIteratorVariable(evaluator, self.mapping, self.name)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        entries = self.mapping.all_entries(evaluator).items()
        if self.name == "keys":
            return [key.variable for key, _ in entries]
        if self.name == "values":
            return [value for _, value in entries]
        return [TupleVariable([key.variable, value]) for key, value in entries]

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__contains__" and not keywords:
            return evaluator.wrap_constant(self._contains(evaluator, *arguments))
        if name == "__iter__":
            return self.iterator(evaluator)
        if name == "__len__":
            return evaluator.wrap_constant(self.length(evaluator))
        if name == "__reversed__":
            return SequenceIteratorVariable(self, self.iterate(evaluator)[::-1])
        if name == "isdisjoint" and self.name != "values":
            return as_set(evaluator, self).call_method(evaluator, name, arguments, keywords)
        raise Unsupported("method of a dict view", f"{self.name}().{name}")

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "mapping" and isinstance(self.mapping, MappingProxyVariable):
            return self.mapping
        if name == "mapping":
            raise Unsupported("attribute of a dict view", name)
        return method_of(evaluator, self, name)

    def _contains(self, evaluator: Evaluator, item: Variable) -> bool:
        if self.name == "keys":
            return self.mapping.contains(evaluator, item)
        if self.name == "values":
            return any(values_equal(evaluator, value, item) for value in self.iterate(evaluator))
        if not issubclass(item.python_type(), tuple) or item.length(evaluator) != 2:
            return False
        key, value = item.iterate(evaluator)
        found = self.mapping.lookup(evaluator, key)
        return found is not None and values_equal(evaluator, found, value)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Keys and items behave as sets do."""
        if self.name == "values":
            return None
        if operator in COMPARISONS:
            is_view = isinstance(other, DictViewVariable) and other.name != "values"
            if not (is_view or isinstance(other, SetVariable)):
                return None
            return evaluator.wrap_constant(self._compares(evaluator, operator, other, reflected))
        if operator not in ("and", "or", "sub", "xor"):
            return None
        pair = as_set(evaluator, self), as_set(evaluator, other)
        left, right = pair[::-1] if reflected else pair
        return left.binary_operation(evaluator, operator, right, False)

    def _compares(self, evaluator: Evaluator, name: str, other: Variable, reflected: bool) -> bool:
        """Elements of one are looked up in the other, which hashes no value of ``items()``."""
        left, right = (other, self) if reflected else (self, other)
        lengths = left.length(evaluator), right.length(evaluator)
        if not getattr(operator, "eq" if name == "ne" else name)(*lengths):
            return name == "ne"
        small, large = (right, left) if name in ("gt", "ge") else (left, right)
        if name in ("eq", "ne"):
            small, large = self, other
        contained = all(
            large.call_method(evaluator, "__contains__", [element], {}).truth(evaluator)
            for element in small.iterate(evaluator)
        )
        return contained is not (name == "ne")

    def printable(self, evaluator: Evaluator) -> Any:
        return getattr(self.mapping.printable(evaluator), self.name)()

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(getattr(self.mapping.kind, self.name), owner_of(self.mapping))


_VIEWS: dict[str, type] = {
    "keys": type({}.keys()), "values": type({}.values()), "items": type({}.items()),
}  # fmt: skip


@register_wrapper(*_VIEWS.values())
def _wrap_view(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """A view from outside, known by the proxy that it gives of its mapping."""
    evaluator.guard(source, TypeIs(type(value)))
    mapping = evaluator.builder.wrap(value.mapping, AttributeSource(source, "mapping"))
    if not isinstance(mapping, DictVariable):
        return RefusedVariable(value, source, "key with methods of its own", source.name())
    name = next(name for name, kind in _VIEWS.items() if kind is type(value))
    return DictViewVariable(mapping, name, source)


@method_models(_VIEWS, *_READABLE)
def _view(name: str, evaluator: Evaluator, self: DictVariable) -> Variable:
    return DictViewVariable(self, name)


@method_model("__getitem__", *_READABLE)
def _get_item(evaluator: Evaluator, self: DictVariable, key: Variable, /) -> Variable:
    """An instance's ``__missing__`` answers for absent keys."""
    from ..objects.user_objects import UserObjectVariable

    found = self.lookup(evaluator, key)
    if found is None and isinstance(self.owner, UserObjectVariable):
        method = self.owner.special(evaluator, "__missing__")
        found = None if method is None else method.call(evaluator, [key], {})
    return self.missing(evaluator, key) if found is None else found


@method_model("get", *_READABLE)
def _get(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None, /
) -> Variable | None:
    found = self.lookup(evaluator, key)
    return default if found is None else found


@method_model("copy", *_READABLE)
def _copy(evaluator: Evaluator, self: DictVariable, /) -> Variable:
    require_plain_reading(self)
    return self.new_like(dict(self.all_entries(evaluator)))


@method_model("__setitem__", *_WRITABLE)
def _set_item(evaluator: Evaluator, self: DictVariable, key: Variable, value: Variable, /) -> None:
    self.store(evaluator, key, value)


@method_model("__delitem__", *_WRITABLE)
def _delete_item(evaluator: Evaluator, self: DictVariable, key: Variable, /) -> None:
    if self.remove(evaluator, key) is None:
        DictVariable.missing(self, evaluator, key)


@method_model("pop", *_WRITABLE)
def _pop(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None, /
) -> Variable:
    removed = self.remove(evaluator, key) if self.lookup(evaluator, key) is not None else default
    return DictVariable.missing(self, evaluator, key) if removed is None else removed


@method_model("setdefault", *_WRITABLE)
def _set_default(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None, /
) -> Variable:
    found = self.lookup(evaluator, key)
    if found is None:
        found = evaluator.wrap_constant(None) if default is None else default
        self.store(evaluator, key, found)
    return found


@method_model("clear", *_WRITABLE)
def _clear(evaluator: Evaluator, self: DictVariable, /) -> None:
    self.clear(evaluator)


@method_model("update", *_WRITABLE)
def _update(
    evaluator: Evaluator, self: DictVariable, other: Variable | None = None, /, **entries: Variable
) -> None:
    if other is not None:
        _add_entries(evaluator, self, other)
    for hashed, value in new_keyword_dict(entries).entries.items():
        self.store(evaluator, hashed.variable, value)


def _add_entries(evaluator: Evaluator, self: DictVariable, other: Variable) -> None:
    from ..objects.user_objects import UserObjectVariable

    storage = storage_of(other)
    if isinstance(storage, DictVariable) and reads_as_dict(other.python_type()):
        for key, value in list(storage.all_entries(evaluator).items()):
            self.store(evaluator, key.variable, value)
    elif isinstance(other, UserObjectVariable) and other.find_attribute(evaluator, "keys"):
        for name in other.call_method(evaluator, "keys", [], {}).iterate(evaluator):
            self.store(evaluator, name, other.call_method(evaluator, "__getitem__", [name], {}))
    else:
        for position, pair in enumerate(other.iterate(evaluator)):
            where = f"dictionary update sequence element #{position}"
            if pair.is_constant() and not hasattr(pair.python_type(), "__iter__"):
                _no_pair(evaluator, f"annot convert {where} to a sequence")
            parts = pair.iterate(evaluator)
            if len(parts) != 2:
                message = f"{where} has length {len(parts)}; 2 is required"
                evaluator.raise_error(ValueError, message)
            self.store(evaluator, *parts)


def _no_pair(evaluator: Evaluator, text: str) -> NoReturn:
    """The error that says so, since 3.14 in a note."""
    if not _TELLS_IN_NOTES:
        evaluator.raise_error(TypeError, f"c{text}")
    evaluator.raise_error(TypeError, "object is not iterable", __notes__=[f"C{text}"])


def _tells_in_notes() -> bool:
    no_pairs: Any = [0]
    try:
        dict(no_pairs)
    except TypeError as error:
        return hasattr(error, "__notes__")
    raise AssertionError("0 is no pair")


_TELLS_IN_NOTES = _tells_in_notes()


@method_model("__reversed__", *_READABLE)
def _reversed(evaluator: Evaluator, self: DictVariable, /) -> Variable:
    return SequenceIteratorVariable(self, self.iterate(evaluator)[::-1])


def _taken_item(evaluator: Evaluator, self: DictVariable, position: int, empty: str) -> Variable:
    keys = list(self.all_entries(evaluator))
    if not keys:
        evaluator.raise_error(KeyError, empty)
    key = keys[position].variable
    value = self.remove(evaluator, key)
    assert value is not None
    return TupleVariable([key, value])


@method_model("popitem", dict)
def _pop_item(evaluator: Evaluator, self: DictVariable, /) -> Variable:
    return _taken_item(evaluator, self, -1, "popitem(): dictionary is empty")


@method_model("popitem", collections.OrderedDict)
def _pop_either_item(
    evaluator: Evaluator, self: DictVariable, last: Variable | None = None
) -> Variable:
    position = -1 if last is None or last.truth(evaluator) else 0
    return _taken_item(evaluator, self, position, "dictionary is empty")


@method_model("move_to_end", collections.OrderedDict)
def _move_to_end(
    evaluator: Evaluator, self: DictVariable, key: Variable, last: Variable | None = None
) -> None:
    value = self.remove(evaluator, key)
    if value is None:
        DictVariable.missing(self, evaluator, key)
        return
    behind: list[tuple[Variable, Variable]] = []
    if last is not None and not last.truth(evaluator):
        behind = [(hashed.variable, entry) for hashed, entry in self.entries.items()]
        self.clear(evaluator)
    for moved, entry in ((key, value), *behind):
        self.store(evaluator, moved, entry)


@method_model("fromkeys", dict, collections.OrderedDict)
def _from_keys(
    evaluator: Evaluator, kind: type, iterable: Variable, value: Variable | None = None, /
) -> Variable:
    given = [] if value is None else [value]
    made = evaluator.wrap_known(_keyed)
    return made.call(evaluator, [evaluator.wrap_known(kind), iterable, *given], {})


def _keyed(kind: Any, iterable: Any, value: Any = None) -> Any:
    """``kind.fromkeys(iterable, value)``"""
    made = kind()
    for key in iterable:
        made[key] = value
    return made
