"""Iterators over sequences, ranges and tensors' rows, and those that compute their elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import drained, find_raw, owner_of
from ..builtins.methods import BuiltinMethodVariable
from .rebuilding import indexed_iterator, reversed_iterator

if TYPE_CHECKING:
    from ..containers.sequences import ListVariable


class IteratorVariable(Variable):
    """What iterators made during evaluation share.

    ``created_at`` is the root frame's instruction that made it: an iterator that cannot be rebuilt at a
    break is left to CPython from there on.
    """

    created_at: int | None = None

    def iterator(self, evaluator: Evaluator) -> Variable:
        return self

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return drained(evaluator, self)

    def remaining(self, evaluator: Evaluator) -> int | None:
        """How many elements there are still, as things stand; None where that is not known."""
        return None

    def length_hint(self, evaluator: Evaluator) -> int | None:
        """What ``__length_hint__`` gives, for classes that have it; None where that is not known."""
        return self.remaining(evaluator)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("__next__", "__iter__") or self._tells(name):
            return BuiltinMethodVariable(self, name)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__iter__":
            return self
        if name == "__next__":
            element = self.next_or_none(evaluator)
            if element is None:
                evaluator.raise_error(StopIteration)
            return element
        hint = self.length_hint(evaluator) if self._tells(name) else None
        if hint is not None and not arguments and not keywords:
            return ConstantVariable(hint)
        raise Unsupported("method of an iterator", f"{self!r}.{name}")

    def _tells(self, name: str) -> bool:
        return name == "__length_hint__" and find_raw(self.python_type(), name) is not None


class SequenceIteratorVariable(IteratorVariable):
    """An iterator over elements known when it was made."""

    def __init__(self, iterable: Variable, elements: Sequence[Variable]) -> None:
        self.iterable = iterable
        self.elements = list(elements)
        self.position = 0

    def python_type(self) -> type:
        kind = self.iterable.python_type()
        if kind is tuple:
            return type(iter(()))
        if self._is_of_text():
            return type(iter(self.iterable.as_constant()))
        return super().python_type()

    def _is_of_text(self) -> bool:
        return self.iterable.is_constant() and self.iterable.python_type() in (str, bytes)

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if self.position >= len(self.elements):
            return None
        self.position += 1
        return self.elements[self.position - 1]

    def remaining(self, evaluator: Evaluator) -> int | None:
        return len(self.elements) - self.position

    def reconstruct(self, emitter: Emitter) -> None:
        if self._is_of_text():
            emitter.load_call(indexed_iterator, self.iterable, self.position)
            return
        if not issubclass(self.iterable.python_type(), tuple):
            super().reconstruct(emitter)
        emitter.load_callable(iter)
        emitter.load_elements("tuple", self.elements[self.position :])
        emitter.call(1)


class ListIteratorVariable(IteratorVariable):
    """An iterator over a list, which sees the list's changes."""

    kind: Any = type(iter([]))

    def __init__(self, iterated: ListVariable) -> None:
        self.iterated = iterated
        self.position = 0
        self.exhausted = False

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        form = self.iterated.form
        if form is not None and self.position == 0 and not self.exhausted:
            first = form.get_item(evaluator, self.iterated, ConstantVariable(0))
            if first is not None:
                self.position = 1
                return first
        items = self.iterated.items(evaluator)
        if self.exhausted or self.position >= len(items):
            self.exhausted = True
            return None
        self.position += 1
        return items[self.position - 1]

    def remaining(self, evaluator: Evaluator) -> int | None:
        return max(len(self.iterated.items(evaluator)) - self.position, 0)

    def length_hint(self, evaluator: Evaluator) -> int | None:
        return 0 if self.exhausted else self.remaining(evaluator)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(indexed_iterator)
        if self.exhausted:
            emitter.build("list", 0)
        else:
            emitter.load_variable(owner_of(self.iterated))
        emitter.load_constant(0 if self.exhausted else self.position)
        emitter.call(2)


class ReversedListIteratorVariable(ListIteratorVariable):
    """``reversed(list)``, which sees the list's changes as well."""

    kind: Any = type(reversed([]))

    def __init__(self, evaluator: Evaluator, iterated: ListVariable) -> None:
        super().__init__(iterated)
        self.position = iterated.length(evaluator) - 1

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        items = self.iterated.items(evaluator)
        if not 0 <= self.position < len(items):
            self.position = -1
            return None
        self.position -= 1
        return items[self.position + 1]

    def remaining(self, evaluator: Evaluator) -> int | None:
        return self.position + 1

    def length_hint(self, evaluator: Evaluator) -> int | None:
        return self.position + 1 if self.position < len(self.iterated.items(evaluator)) else 0

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(reversed_iterator, owner_of(self.iterated), self.position)


class RangeIteratorVariable(IteratorVariable):
    """An iterator over a range."""

    kind: Any = type(iter(range(0)))

    def __init__(self, values: range) -> None:
        self.values = values
        self.position = 0

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if self.position >= len(self.values):
            return None
        self.position += 1
        return ConstantVariable(self.values[self.position - 1])

    def remaining(self, evaluator: Evaluator) -> int | None:
        return len(self.values) - self.position

    def rest(self) -> range:
        """The elements still to come."""
        return self.values[self.position :]

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        """The element where :meth:`rest` is ``index``."""
        return index

    def exhaust(self) -> None:
        """Go to the end: a loop has used all elements."""
        self.position = len(self.values)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(iter, self.values[self.position :])


class TensorRowsVariable(RangeIteratorVariable):
    """An iterator over a tensor's rows, which become nodes when they are used."""

    kind: Any = type(iter(()))  # torch iterates over the tuple that unbind gives

    def __init__(self, tensor: Variable, count: int) -> None:
        super().__init__(range(count))
        self.tensor = tensor

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        index = super().next_or_none(evaluator)
        return None if index is None else self.element(evaluator, index)

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        """The row number ``index``."""
        arguments = [ConstantVariable(0), index]
        from ..torch.tensor import TensorVariable

        row = evaluator.call_method(self.tensor, "select", *arguments)
        if isinstance(row, TensorVariable) and row.fake.requires_grad and row.fake._is_view():
            # Autograd lets nobody write to one of several views that an operator gives.
            row.fake = row.fake.unsqueeze(0).unbind(0)[0]
            row.node.meta["example_value"] = row.fake
        return row

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_rows_from, self.tensor, self.position)


def _rows_from(tensor: torch.Tensor, position: int) -> Iterator[torch.Tensor]:
    return iter(tensor.unbind(0)[position:])


NextItem = Callable[["Evaluator"], "Variable | None"]


class LazyIteratorVariable(IteratorVariable):
    """An iterator of a builtin class (zip, enumerate, map, ...) whose elements ``step`` computes.

    ``parts`` gives what ``make``, the class itself if None, makes an iterator of the remaining elements from;
    None where there is no such thing, and a break comes before the iterator is made.
    """

    def __init__(
        self,
        kind: type,
        step: NextItem,
        parts: Callable[[], list[Variable]] | None = None,
        make: Callable[..., object] | None = None,
    ) -> None:
        self.kind = kind
        self.advanced = 0  # how often: the state that ``step`` keeps changes with it
        self._step = step
        self._parts = parts
        self._make = make or kind

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        self.advanced += 1
        return self._step(evaluator)

    def reconstruct(self, emitter: Emitter) -> None:
        if self._parts is None:
            super().reconstruct(emitter)
            return
        parts = self._parts()
        emitter.load_call(self._make, *parts)

    def __repr__(self) -> str:
        return f"{self.kind.__name__} object"


IteratorMaker = Callable[["Evaluator", Variable], "IteratorVariable | None"]

_KEPT: list[IteratorMaker] = []


def register_kept_iterator(maker: IteratorMaker) -> IteratorMaker:
    """Register what gives the iterator of an iterable that a loop may keep, None for other iterables."""
    _KEPT.append(maker)
    return maker


def kept_iterator(evaluator: Evaluator, iterable: Variable) -> IteratorVariable | None:
    """An iterator over rows or symbolic numbers, over which a loop may stay in the graph."""
    made = (maker(evaluator, iterable) for maker in _KEPT)
    return next((iterator for iterator in made if iterator is not None), None)
