"""``collections.deque``."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from weft_guards import AttributeSource, EqualsConstant, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.operations import values_equal
from ...variables.python_protocols import find_raw, is_python_class, name_in_errors, storage_of
from ..iterators.builtin_iterators import IteratorVariable
from ..iterators.rebuilding import advanced_iterator
from ..table import method_model, method_models, model
from .sequences import ListVariable
from .slices import SliceVariable, index_value

_LONGEST = 1_000_000
_MUTATED = "deque mutated during iteration"


class DequeVariable(ListVariable):
    """A deque; ``longest`` is its ``maxlen``."""

    kind: Any = collections.deque

    def __init__(
        self,
        items: Sequence[Variable] = (),
        longest: int | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(items, source)
        self.longest = longest
        self.changes = 0
        self._drop(-1)

    def mutate(self, evaluator: Evaluator) -> list[Variable]:
        self.changes += 1
        return super().mutate(evaluator)

    def assign(self, evaluator: Evaluator) -> list[Variable]:
        """The elements, about to be replaced in their places: iterators go on."""
        return super().mutate(evaluator)

    def _drop(self, end: int) -> None:
        """Keep to the greatest length by dropping what is farthest from ``end``, -1 or 0."""
        if self.longest is not None and len(self._items) > self.longest:
            surplus = len(self._items) - self.longest
            del self._items[slice(0, surplus) if end else slice(self.longest, None)]

    def add(self, evaluator: Evaluator, item: Variable, end: int = -1) -> None:
        items = self.mutate(evaluator)
        items.insert(0 if end == 0 else len(items), item)
        self._drop(end)

    def append(self, evaluator: Evaluator, item: Variable) -> None:
        self.add(evaluator, item)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "maxlen":
            return ConstantVariable(self.longest)
        return super().get_attribute(evaluator, name)

    def get_item(self, evaluator: Evaluator, key: Variable) -> Variable:
        if isinstance(key, SliceVariable):
            evaluator.raise_error(TypeError, "sequence index must be integer, not 'slice'")
        index = index_value(evaluator, key)
        items = self.items(evaluator)
        if not -len(items) <= index < len(items):
            evaluator.raise_error(IndexError, "deque index out of range")
        return items[index]

    def iterator(self, evaluator: Evaluator) -> Variable:
        return DequeIteratorVariable(self)

    def comparisons(
        self,
        evaluator: Evaluator,
        item: Variable,
        error: type[Exception] = RuntimeError,
    ) -> Iterator[bool]:
        """Whether each element equals ``item``; ``error`` where the deque has changed meanwhile."""
        changes = self.changes
        for element in list(self.items(evaluator)):
            equal = values_equal(evaluator, element, item)
            if self.changes != changes:
                evaluator.raise_error(error, _MUTATED)
            yield equal

    def contains(self, evaluator: Evaluator, item: Variable) -> bool:
        changes = self.changes
        for element in list(self.items(evaluator)):
            if values_equal(evaluator, element, item):
                return True
            if self.changes != changes:
                evaluator.raise_error(RuntimeError, _MUTATED)
        return False

    def emit_mutation(self, emitter: Emitter) -> None:
        emitter.load_callable(_refill if self.changes else _replace)
        emitter.load_variable(self)
        ListVariable.reconstruct(self, emitter)
        emitter.call(2)
        emitter.pop()

    def snapshot(self) -> collections.deque[object]:
        if self._unread is not None:
            raise Unsupported("value is not a constant", repr(self))
        return collections.deque((item.snapshot() for item in self._items), self.longest)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator == "iadd":
            for item in other.iterate(evaluator):
                self.append(evaluator, item)
            return self
        if operator == "add":
            storage = storage_of(other)
            if not isinstance(storage, DequeVariable):
                return self._refuse_to_add(evaluator, other, reflected)
            left, right = (storage, self) if reflected else (self, storage)
            made = DequeVariable(left.items(evaluator), left.longest)
            made.call_method(evaluator, "extend", [right], {})
            return made
        if operator in ("mul", "imul"):
            return self._repeated(evaluator, operator, other, reflected)
        return super().binary_operation(evaluator, operator, other, reflected)

    def _refuse_to_add(
        self, evaluator: Evaluator, other: Variable, reflected: bool
    ) -> Variable | None:
        if not reflected:
            kind = other.python_type().__name__
            message = f'can only concatenate deque (not "{kind}") to deque'
            evaluator.raise_error(TypeError, message)
        return None

    def _repeated(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        kind = other.python_type()
        if find_raw(kind, "__index__") is None:
            if is_python_class(kind) and find_raw(kind, "__rmul__") is not None:
                return None
            is_sequence = reflected and find_raw(kind, "__getitem__") is not None
            name = name_in_errors(collections.deque if is_sequence else kind)
            evaluator.raise_error(TypeError, f"can't multiply sequence by non-int of type {name!r}")
        count = max(index_value(evaluator, other), 0)
        items = self.items(evaluator)
        if count * len(items) > _LONGEST and self.longest is None:
            raise Unsupported("sequence too long", f"{len(items)} * {count}")
        repeated = items * (count if self.longest is None else min(count, self.longest + 1))
        if operator == "mul":
            return DequeVariable(repeated, self.longest)
        self.mutate(evaluator)[:] = repeated
        self._drop(-1)
        return self

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(collections.deque)
        super().reconstruct(emitter)
        emitter.load_constant(self.longest)
        emitter.call(2)


def _refill(target: collections.deque[object], items: list[object]) -> None:
    target.clear()
    target.extend(items)


def _replace(target: collections.deque[object], items: list[object]) -> None:
    for position, item in enumerate(items):
        target[position] = item


@register_wrapper(collections.deque)
def _wrap_deque(evaluator: Evaluator, value: collections.deque[Any], source: Source) -> Variable:
    evaluator.guard(source, TypeIs(collections.deque))
    evaluator.guard(AttributeSource(source, "maxlen"), EqualsConstant(value.maxlen))
    variable = DequeVariable((), value.maxlen, source)
    variable.leave_unread(value)
    return variable


class DequeIteratorVariable(IteratorVariable):
    """An iterator over a deque: RuntimeError once the deque changes."""

    kind: Any = type(iter(collections.deque()))

    def __init__(self, iterated: DequeVariable) -> None:
        self.iterated = iterated
        self._changes = iterated.changes
        self._position = 0

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        items = self.iterated.items(evaluator)
        if self.iterated.changes != self._changes:
            evaluator.raise_error(RuntimeError, _MUTATED)
        if self._position >= len(items):
            return None
        self._position += 1
        return items[self._position - 1]

    def reconstruct(self, emitter: Emitter) -> None:
        if self.iterated.changes != self._changes:
            raise Unsupported("deque changed during iteration", repr(self.iterated))
        emitter.load_call(advanced_iterator, self.iterated, self._position)


@model(collections.deque)
def _new_deque(
    evaluator: Evaluator, iterable: Variable | None = None, maxlen: Variable | None = None
) -> Variable:
    longest = None
    if maxlen is not None and not maxlen.is_none():
        longest = index_value(evaluator, maxlen)
        evaluator.pure(collections.deque, (), longest)
    return DequeVariable([] if iterable is None else iterable.iterate(evaluator), longest)


@method_model("count", collections.deque)
def _count(evaluator: Evaluator, self: DequeVariable, item: Variable, /) -> Variable:
    return ConstantVariable(sum(self.comparisons(evaluator, item)))


@method_model("remove", collections.deque)
def _remove(evaluator: Evaluator, self: DequeVariable, item: Variable, /) -> None:
    for position, equal in enumerate(self.comparisons(evaluator, item, IndexError)):
        if equal:
            del self.mutate(evaluator)[position]
            return
    evaluator.pure(collections.deque().remove, item.snapshot())  # raises


@method_model("appendleft", collections.deque)
def _append_left(evaluator: Evaluator, self: DequeVariable, item: Variable, /) -> None:
    self.add(evaluator, item, 0)


@method_models(("extend", "extendleft"), collections.deque)
def _extend(name: str, evaluator: Evaluator, self: DequeVariable, items: Variable, /) -> None:
    for item in items.iterate(evaluator):
        self.add(evaluator, item, 0 if name == "extendleft" else -1)


@method_models(("pop", "popleft"), collections.deque)
def _pop(name: str, evaluator: Evaluator, self: DequeVariable, /) -> Variable:
    if not self.items(evaluator):
        evaluator.raise_error(IndexError, "pop from an empty deque")
    return self.mutate(evaluator).pop(0 if name == "popleft" else -1)


@method_model("rotate", collections.deque)
def _rotate(evaluator: Evaluator, self: DequeVariable, steps: Variable | None = None, /) -> None:
    number = 1 if steps is None else index_value(evaluator, steps)
    items = self.mutate(evaluator)
    rotated = collections.deque(items)
    evaluator.pure(rotated.rotate, number)
    items[:] = rotated


@method_model("reverse", collections.deque)
def _reverse(evaluator: Evaluator, self: DequeVariable, /) -> None:
    self.assign(evaluator).reverse()


@method_model("copy", collections.deque)
def _copy(evaluator: Evaluator, self: DequeVariable, /) -> Variable:
    return DequeVariable(self.items(evaluator), self.longest)


@method_model("__setitem__", collections.deque)
def _set_item(evaluator: Evaluator, self: DequeVariable, key: Variable, value: Variable, /) -> None:
    self.get_item(evaluator, key)
    self.assign(evaluator)[index_value(evaluator, key)] = value


@method_model("__delitem__", collections.deque)
def _delete_item(evaluator: Evaluator, self: DequeVariable, key: Variable, /) -> None:
    self.get_item(evaluator, key)
    del self.mutate(evaluator)[index_value(evaluator, key)]
