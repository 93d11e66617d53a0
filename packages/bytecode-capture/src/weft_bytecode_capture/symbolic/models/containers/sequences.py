"""Lists, tuples, slices and named tuples' storage."""

from __future__ import annotations

import collections
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from weft_guards import ArgumentSource, ItemSource, LengthIs, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.hashing import hashed_key
from ...variables.keys import HashedKey
from ...variables.operations import compare_sequences, values_equal
from ...variables.python_protocols import (
    COMPARISONS,
    find_raw,
    has_finalizer,
    is_data_descriptor,
    no_place,
    owner_of,
    storage_of,
)
from ..builtins.methods import ContainerVariable
from ..iterators.builtin_iterators import ListIteratorVariable
from ..numbers.representations import is_invariant
from ..table import method_model
from .list_forms import ListForm, RepeatedTensor
from .selections import selected_element, varying_length
from .slices import SliceVariable, index_value


def _require_recurring(evaluator: Evaluator, source: Source, values: Sequence[Any]) -> None:
    """Break where code behind a break would be compiled for each length of what a loop has filled.

    Not inside a loop, which would break in each iteration.
    """
    history = evaluator.state.frame.history
    if not history.is_resumed or not isinstance(source, ArgumentSource):
        return
    if any(_is_in_loop(frame) for frame in evaluator.frame.frames()):
        return
    if history.length_recurs(source, len(values)):
        return
    raise Unsupported("sequence whose length varies", f"{len(values)} elements")


def _is_in_loop(frame: Frame) -> bool:
    from ...regions.branches.join_points import loops

    return any(frame.index in loop.body for loop in loops(frame.decoded))


class SequenceVariable(ContainerVariable):
    """What lists and tuples share.  A sequence from outside is wrapped element by element when used."""

    kind: type

    def __init__(self, items: Sequence[Variable] = (), source: Source | None = None) -> None:
        self._items: list[Variable] = list(items)
        self.source = source
        self._unread: Sequence[Any] | None = None
        self._appended: list[Variable] = []  # to a list that has not been read

    @classmethod
    def from_object(
        cls, evaluator: Evaluator, value: Sequence[Any], source: Source
    ) -> SequenceVariable:
        variable = cls((), source)
        variable.leave_unread(value)
        return variable

    def leave_unread(self, value: Sequence[Any]) -> None:
        """Say which object from outside holds the elements, to be read when one is needed."""
        self._unread = value

    @property
    def is_read(self) -> bool:
        """Whether its elements are known: those of a sequence from outside are read when one is needed."""
        return self._unread is None

    def look(self) -> None:
        """The elements are needed."""

    def items(self, evaluator: Evaluator) -> list[Variable]:
        """The elements; the very list that mutation changes."""
        self.look()
        if self._unread is not None:
            source = self.source
            assert source is not None
            _require_recurring(evaluator, source, self._unread)
            values, self._unread = self._unread, None
            evaluator.guard(source, LengthIs(len(values)))
            self._items = [
                evaluator.builder.wrap(value, ItemSource(source, index))
                for index, value in enumerate(values)
            ]
            self._items.extend(self._appended)
            self._appended = []
            evaluator.state.note_elements(len(values))
        return self._items

    def element_types(self) -> set[type]:
        """The types of the elements, of what is known of them; nothing is guarded."""
        if self._unread is not None:
            return set(map(type, self._unread))
        kinds = (getattr(item, "kind", None) for item in self._items)
        return {kind for kind in kinds if isinstance(kind, type)}

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return list(self.items(evaluator))

    def contains(self, evaluator: Evaluator, item: Variable) -> bool:
        return any(values_equal(evaluator, element, item) for element in self.items(evaluator))

    def length(self, evaluator: Evaluator) -> int:
        self.look()
        if self._unread is not None and self.source is not None:
            evaluator.guard(self.source, LengthIs(len(self._unread)))
            return len(self._unread) + len(self._appended)
        return len(self._items)

    def length_variable(self, evaluator: Evaluator) -> Variable:
        if self._unread is not None and self.source is not None and self.kind in (list, tuple):
            varying = varying_length(evaluator, self._unread, self.source)
            if varying is not None:
                added = evaluator.wrap_constant(len(self._appended))
                return evaluator.binary_operation("add", varying, added)
        return super().length_variable(evaluator)

    def snapshot(self) -> Any:
        self.look()
        if self._unread is not None:
            raise Unsupported("value is not a constant", repr(self))
        return self.kind(item.snapshot() for item in self._items)

    def printable(self, evaluator: Evaluator) -> Any:
        kind = self.python_type()
        if kind not in (list, tuple):
            return self.snapshot()
        return kind(item.printable(evaluator) for item in self.items(evaluator))

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        found = find_raw(self.python_type(), name)
        if is_data_descriptor(found):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        no_place(evaluator, self.python_type(), name, found is not None)

    def get_item(self, evaluator: Evaluator, key: Variable) -> Variable:
        if isinstance(key, SliceVariable):
            return type(self).plain(self.items(evaluator)[key.as_slice(evaluator)])
        if self._unread is not None and self.source is not None and not self._appended:
            selected = selected_element(evaluator, self._unread, self.source, key)
            if selected is not None:
                return selected
        if key.python_type() is int and not key.is_constant():
            number = self._number_at(evaluator, key)
            if number is not None:
                return number
        index = index_value(evaluator, key, self.kind.__name__)
        self.look()
        items = self._items if self._unread is None else self.items(evaluator)
        try:
            return items[index]
        except IndexError:
            evaluator.raise_error(IndexError, f"{self.kind.__name__} index out of range")

    def _number_at(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        """The number at a place that depends on data; None of other things, and at other places."""
        from ..numbers.data_numbers import depends_on_data
        from ..torch.numbers_in_lists import number_at

        if not depends_on_data(key):
            return None
        return number_at(evaluator, self.items(evaluator), key)

    @classmethod
    def plain(cls, items: Sequence[Variable]) -> Variable:
        """A new sequence of the builtin kind."""
        return cls(items)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        storage = storage_of(other)
        if isinstance(storage, SequenceVariable) and storage.kind is self.kind:
            if operator == "add":
                left, right = (storage, self) if reflected else (self, storage)
                return type(self).plain(left.items(evaluator) + right.items(evaluator))
            if operator in COMPARISONS:
                left, right = (storage, self) if reflected else (self, storage)
                return compare_sequences(
                    evaluator, operator, left.items(evaluator), right.items(evaluator)
                )
        if operator == "mul" and _is_count(other):
            return type(self).plain(repeated(evaluator, self.items(evaluator), other))
        return None


def _is_count(value: Variable) -> bool:
    """Whether a sequence can be multiplied by a value."""
    return find_raw(value.python_type(), "__index__") is not None


def _is_one_tensor(items: Sequence[Variable]) -> bool:
    return len(items) == 1 and issubclass(items[0].python_type(), torch.Tensor)


def repeated(evaluator: Evaluator, items: list[Variable], count: Variable) -> list[Variable]:
    """``items * count``."""
    times = index_value(evaluator, count)
    if len(items) * times > sys.maxsize // 8:  # pointers
        evaluator.raise_error(MemoryError)
    if len(items) * times > _LONGEST:
        raise Unsupported("sequence too long", f"{len(items)} * {times}")
    return items * times


_LONGEST = 1_000_000


class TupleVariable(SequenceVariable):
    """An exact tuple."""

    kind = tuple

    def is_constant(self) -> bool:
        return self._unread is None and all(item.is_constant() for item in self._items)

    def is_made_of_numbers(self) -> bool:
        return self._unread is None and any(item.is_made_of_numbers() for item in self._items)

    def as_constant(self) -> Any:
        if self._unread is not None:
            raise Unsupported("value is not a constant", repr(self))
        return tuple(item.as_constant() for item in self._items)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        """A tuple is the key that its elements are; symbolic numbers in it are these very numbers."""
        items = self.items(evaluator)
        if all(map(is_invariant, items)):
            return HashedKey(self, (tuple(item.as_constant() for item in items),))
        parts = tuple(hashed_key(evaluator, item) for item in items)
        found = [part.python_key for part in parts]
        known = None if None in found else (tuple(part[0] for part in found if part),)
        return HashedKey(self, known, parts)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_elements("tuple", self._items)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"Tuple({self._items!r})"


class ListVariable(SequenceVariable):
    """An exact list."""

    kind = list

    owner: Variable | None = None  # the instance whose storage it is
    form: ListForm | None = None
    version = 0  # how often it was changed
    _has_no_finalizers = False  # whether no element runs code as it dies

    @property
    def is_its_parts(self) -> bool:
        """Whether its elements are all that it is: no storage of an instance, nothing noted beside them."""
        is_plain = type(self) is ListVariable and self.is_read and self.owner is None
        return is_plain and not (self.form is not None and self.form.hides_elements)

    def look(self) -> None:
        if self.form is not None:
            self.form.look(self)

    def truth(self, evaluator: Evaluator) -> bool:
        known = None if self.form is None else self.form.truth(evaluator)
        return super().truth(evaluator) if known is None else known

    def length_variable(self, evaluator: Evaluator) -> Variable:
        known = None if self.form is None else self.form.length()
        return super().length_variable(evaluator) if known is None else known

    def get_item(self, evaluator: Evaluator, key: Variable) -> Variable:
        known = None if self.form is None else self.form.get_item(evaluator, self, key)
        return super().get_item(evaluator, key) if known is None else known

    def mutate(self, evaluator: Evaluator) -> list[Variable]:
        """The elements, about to be changed."""
        self.version += 1
        if self.source is not None:
            self._require_no_finalizers()
            evaluator.side_effects.mutated(self)
        return self.items(evaluator)

    def _require_no_finalizers(self) -> None:
        """The elements of a list from outside may be taken out of it."""
        if not self._has_no_finalizers:
            if any(map(has_finalizer, self.element_types())):
                raise Unsupported(
                    "deletion of an object with an observable lifetime", f"of {self!r}"
                )
            self._has_no_finalizers = True

    def iterator(self, evaluator: Evaluator) -> Variable:
        return ListIteratorVariable(self)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator == "iadd" and not reflected:
            added = other.iterate(evaluator)
            if self.form is None:
                self.mutate(evaluator).extend(added)
            for item in added if self.form is not None else ():
                self.append(evaluator, item)
            return self
        if operator == "mul" and self.is_its_parts and _is_one_tensor(self._items):
            from ..numbers.data_numbers import depends_on_data

            if depends_on_data(other):
                made = ListVariable()
                made.form = RepeatedTensor(
                    self._items[0], other, partial(index_value, evaluator, other)
                )
                return made
        if operator == "imul" and _is_count(other):
            items = self.mutate(evaluator)
            items[:] = repeated(evaluator, items, other)
            return self
        return super().binary_operation(evaluator, operator, other, reflected)

    def append(self, evaluator: Evaluator, item: Variable) -> None:
        """Appending to a list from outside needs no knowledge of what it holds."""
        if self.form is not None and self.form.append(item):
            return
        if self._unread is None:
            self.mutate(evaluator).append(item)
        else:
            self._appended.append(item)
            evaluator.side_effects.mutated(self)

    def reverse(self, evaluator: Evaluator) -> None:
        form = None if self.form is None else self.form.reversed()
        if form is None:
            self.mutate(evaluator).reverse()
            return
        self.version += 1
        self.form = form

    def emit_mutation(self, emitter: Emitter) -> None:
        if self._unread is not None:
            emitter.load_callable(list.extend)
            emitter.load_variable(owner_of(self))
            emitter.load_elements("tuple", self._appended)
            emitter.call(2)
            emitter.pop()
            return
        emitter.load_callable(list.__setitem__)
        emitter.load_variable(owner_of(self))
        emitter.load_object(slice(None))
        self.reconstruct(emitter)
        emitter.call(3)
        emitter.pop()

    def reconstruct(self, emitter: Emitter) -> None:
        if self.form is not None and self.form.rebuild(emitter):
            return
        self.look()
        emitter.load_elements("list", self._items)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"List({self._items!r})"


@register_wrapper(list)
def _wrap_list(evaluator: Evaluator, value: list[Any], source: Source) -> Variable:
    evaluator.guard(source, TypeIs(list))
    return ListVariable.from_object(evaluator, value, source)


# Methods.


@method_model("__getitem__", list, tuple, collections.deque)
def _get_item(evaluator: Evaluator, self: SequenceVariable, key: Variable, /) -> Variable:
    return self.get_item(evaluator, key)


@method_model("count", list, tuple)
def _count(evaluator: Evaluator, self: SequenceVariable, item: Variable, /) -> Variable:
    found = [values_equal(evaluator, element, item) for element in self.items(evaluator)]
    return evaluator.wrap_constant(sum(found))


@method_model("index", list, tuple)
def _index(
    evaluator: Evaluator,
    self: SequenceVariable,
    item: Variable,
    start: Variable | None = None,
    stop: Variable | None = None,
    /,
) -> Variable:
    items = self.items(evaluator)
    first = 0 if start is None else index_value(evaluator, start, "slice")
    last = None if stop is None else index_value(evaluator, stop, "slice")
    for position in range(*slice(first, last).indices(len(items))):
        if values_equal(evaluator, items[position], item):
            return evaluator.wrap_constant(position)
    if self.kind is tuple:
        evaluator.raise_error(ValueError, "tuple.index(x): x not in tuple")
    return evaluator.raise_error(ValueError, f"{item.snapshot()!r} is not in list")


@method_model("append", list, collections.deque)
def _append(evaluator: Evaluator, self: ListVariable, item: Variable, /) -> None:
    self.append(evaluator, item)


@method_model("extend", list)
def _extend(evaluator: Evaluator, self: ListVariable, items: Variable, /) -> None:
    for item in items.iterate(evaluator):
        self.append(evaluator, item)


@method_model("insert", list)
def _insert(
    evaluator: Evaluator, self: ListVariable, position: Variable, item: Variable, /
) -> None:
    self.mutate(evaluator).insert(index_value(evaluator, position), item)


@method_model("pop", list)
def _pop(evaluator: Evaluator, self: ListVariable, position: Variable | None = None, /) -> Variable:
    items = self.items(evaluator)
    index = -1 if position is None else index_value(evaluator, position)
    if not -len(items) <= index < len(items):
        evaluator.pure(items.pop, index)  # raises
    return self.mutate(evaluator).pop(index)


@method_model("remove", list)
def _remove(evaluator: Evaluator, self: ListVariable, item: Variable, /) -> None:
    for position, element in enumerate(self.items(evaluator)):
        if values_equal(evaluator, element, item):
            del self.mutate(evaluator)[position]
            return
    evaluator.pure([].remove, None)  # raises


@method_model("clear", list, collections.deque)
def _clear(evaluator: Evaluator, self: ListVariable, /) -> None:
    self.mutate(evaluator).clear()


@method_model("reverse", list)
def _reverse(evaluator: Evaluator, self: ListVariable, /) -> None:
    self.reverse(evaluator)


@method_model("copy", list)
def _copy(evaluator: Evaluator, self: ListVariable, /) -> Variable:
    return ListVariable(self.items(evaluator))


@method_model("__setitem__", list)
def _set_item(evaluator: Evaluator, self: ListVariable, key: Variable, value: Variable, /) -> None:
    if isinstance(key, SliceVariable):
        new = value.iterate(evaluator)
        items = self.mutate(evaluator)
        evaluator.pure(list.__setitem__, items, key.as_slice(evaluator), new)
        return
    index = index_value(evaluator, key, "list")
    items = self.mutate(evaluator)
    evaluator.pure(list.__setitem__, items, index, value)


@method_model("__delitem__", list)
def _delete_item(evaluator: Evaluator, self: ListVariable, key: Variable, /) -> None:
    items = self.mutate(evaluator)
    if isinstance(key, SliceVariable):
        del items[key.as_slice(evaluator)]
    else:
        evaluator.pure(list.__delitem__, items, index_value(evaluator, key, "list"))


@method_model("sort", list)
def _sort(
    evaluator: Evaluator,
    self: ListVariable,
    *,
    key: Variable | None = None,
    reverse: Variable | None = None,
) -> None:
    """The list is empty meanwhile, and keeps the order at which a comparison raises."""
    items = self.mutate(evaluator)
    saved = items[:]
    items.clear()
    version = self.version
    try:
        sort_variables(evaluator, saved, key, reverse)
    finally:
        modified = self.version != version
        items[:] = saved
    if modified:
        evaluator.raise_error(ValueError, "list modified during sort")


class _Ordered:
    """An element in a sort of CPython's, which asks for ``<`` alone."""

    __slots__ = ("_evaluator", "item", "key")

    def __init__(self, evaluator: Evaluator, key: Variable, item: Variable) -> None:
        self._evaluator = evaluator
        self.key = key
        self.item = item

    def __lt__(self, other: _Ordered) -> bool:
        evaluator = self._evaluator
        return evaluator.binary_operation("lt", self.key, other.key).truth(evaluator)


def sort_variables(
    evaluator: Evaluator, items: list[Variable], key: Variable | None, reverse: Variable | None
) -> None:
    """Stable sort in place by ``<`` of the program's own objects."""
    descending = reverse is not None and reverse.truth(evaluator)
    keys = items
    if key is not None and not key.is_none():
        keys = [evaluator.call_function(key, [item]) for item in items]
    ordered = [_Ordered(evaluator, *pair) for pair in zip(keys, items, strict=True)]
    try:
        ordered.sort(reverse=descending)
    finally:
        items[:] = [element.item for element in ordered]


def flattened(evaluator: Evaluator, values: Iterable[Variable]) -> Iterator[Variable]:
    """``values``, lists and tuples among them replaced by what they hold, at any depth."""
    for value in values:
        if isinstance(value, SequenceVariable):
            yield from flattened(evaluator, value.items(evaluator))
        else:
            yield value
