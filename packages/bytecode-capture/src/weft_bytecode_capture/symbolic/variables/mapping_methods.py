"""Methods of dicts, and their views as sequences of what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...unsupported import Unsupported
from .base import Variable
from .iterators import SequenceIteratorVariable
from .mappings import (
    DefaultDictVariable,
    DictVariable,
    MappingProxyVariable,
    OrderedDictVariable,
    new_keyword_dict,
)
from .methods import MethodTable
from .sequences import TupleVariable, storage_of

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator

_READABLE = (
    DictVariable.methods,
    OrderedDictVariable.methods,
    DefaultDictVariable.methods,
    MappingProxyVariable.methods,
)
_WRITABLE = _READABLE[:3]


class DictViewVariable(Variable):
    """``keys()``, ``values()`` or ``items()`` of a dict; read when iterated."""

    def __init__(self, mapping: DictVariable, name: str) -> None:
        self.mapping = mapping
        self.name = name

    def python_type(self) -> type:
        return type(getattr({}, self.name)())

    def truth(self, evaluator: Evaluator) -> bool:
        return self.mapping.truth(evaluator)

    def length(self, evaluator: Evaluator) -> int:
        return self.mapping.length(evaluator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        entries = self.mapping.all_entries(evaluator).items()
        if self.name == "keys":
            return [key.variable for key, _ in entries]
        if self.name == "values":
            return [value for _, value in entries]
        return [TupleVariable([key.variable, value]) for key, value in entries]

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        arguments: list[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        if name == "__contains__" and self.name == "keys" and not keywords:
            return evaluator.wrap_constant(self.mapping.contains(evaluator, arguments[0]))
        raise Unsupported("method of a dict view", f"{self.name}().{name}")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(getattr(self.mapping.kind, self.name))
        emitter.load_variable(self.mapping)
        emitter.call(1)


def _register_views(methods: MethodTable) -> None:
    for name in ("keys", "values", "items"):

        def view(evaluator: Evaluator, self: DictVariable, name: str = name) -> Variable:
            return DictViewVariable(self, name)

        methods.method(name, 0)(view)


def _get_item(evaluator: Evaluator, self: DictVariable, key: Variable) -> Variable:
    found = self.lookup(evaluator, key)
    return self.missing(evaluator, key) if found is None else found


def _get(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None
) -> Variable | None:
    found = self.lookup(evaluator, key)
    return default if found is None else found


def _contains(evaluator: Evaluator, self: DictVariable, key: Variable) -> Variable:
    return evaluator.wrap_constant(self.contains(evaluator, key))


def _length(evaluator: Evaluator, self: DictVariable) -> Variable:
    return evaluator.wrap_constant(self.length(evaluator))


def _iter(evaluator: Evaluator, self: DictVariable) -> Variable:
    return SequenceIteratorVariable(self, self.iterate(evaluator))


def _copy(evaluator: Evaluator, self: DictVariable) -> Variable:
    return self.new_like(dict(self.all_entries(evaluator)))


def _set_item(evaluator: Evaluator, self: DictVariable, key: Variable, value: Variable) -> None:
    self.store(evaluator, key, value)


def _delete_item(evaluator: Evaluator, self: DictVariable, key: Variable) -> None:
    if self.remove(evaluator, key) is None:
        DictVariable.missing(self, evaluator, key)


def _pop(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    removed = self.remove(evaluator, key) if self.lookup(evaluator, key) is not None else default
    return DictVariable.missing(self, evaluator, key) if removed is None else removed


def _set_default(
    evaluator: Evaluator, self: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    found = self.lookup(evaluator, key)
    if found is None:
        found = evaluator.wrap_constant(None) if default is None else default
        self.store(evaluator, key, found)
    return found


def _clear(evaluator: Evaluator, self: DictVariable) -> None:
    self.clear(evaluator)


def _update(
    evaluator: Evaluator, self: DictVariable, *others: Variable, **keywords: Variable
) -> None:
    for other in others:
        storage = storage_of(other)
        if isinstance(storage, DictVariable):
            for key, value in list(storage.all_entries(evaluator).items()):
                self.store(evaluator, key.variable, value)
            continue
        for pair in other.iterate(evaluator):
            parts = pair.iterate(evaluator)
            if len(parts) != 2:
                raise Unsupported("arguments of a builtin method", "dict.update")
            self.store(evaluator, *parts)
    for hashed, value in new_keyword_dict(keywords).entries.items():
        self.store(evaluator, hashed.variable, value)


for _methods in _READABLE:
    _register_views(_methods)
    _methods.method("__getitem__", 1)(_get_item)
    _methods.method("get", 1, 2)(_get)
    _methods.method("__contains__", 1)(_contains)
    _methods.method("__len__", 0)(_length)
    _methods.method("__iter__", 0)(_iter)
    _methods.method("copy", 0)(_copy)
for _methods in _WRITABLE:
    _methods.method("__setitem__", 2)(_set_item)
    _methods.method("__delitem__", 1)(_delete_item)
    _methods.method("pop", 1, 2)(_pop)
    _methods.method("setdefault", 1, 2)(_set_default)
    _methods.method("clear", 0)(_clear)
    _methods.method("update", keywords=("*",))(_update)
