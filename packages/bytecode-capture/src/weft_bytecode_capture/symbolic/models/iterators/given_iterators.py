"""Iterators from outside that say where they stand: over lists, tuples and ranges, and ``count``.

The frame takes elements from where the iterator stands on entry, a number that is guarded as others are.
Behind the graph the iterator itself is moved on by as many.
"""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Callable
from typing import Any

from weft_guards import ArgumentSource, ItemSource, Source, TypeIs

from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ..containers.selections import selected_element
from ..objects.opaque import OpaqueVariable
from .builtin_iterators import IteratorVariable

_COUNT = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")
_MOST = 2**31  # beyond which a place is no number of a graph

# What an iterator says of itself, read on entry and by guards.


def iterated_by(iterator: Any) -> Any:
    """The sequence that an iterator goes through: an empty one once it is through."""
    return iterator.__reduce__()[1][0]


def place_of(iterator: Any) -> int:
    """Where in that the next element is."""
    place: int = (*iterator.__reduce__(), 0)[2] or 0
    return place


def number_left(iterator: Any) -> int:
    """How many elements are left."""
    left: int = iterator.__length_hint__()
    return left


def next_in_range(iterator: Any) -> int:
    """
    :raises IndexError: the iterator is through.
    """
    values: range = iterated_by(iterator)
    return values[place_of(iterator)]


def step_of_range(iterator: Any) -> int:
    values: range = iterated_by(iterator)
    return values.step


def counted(iterator: Any) -> tuple[int, int]:
    """What ``count`` gives next, and by how much more each time.

    :raises ValueError: these are no integers.
    """
    plain = all(type(part) is int for part in gc.get_referents(iterator))
    found = _COUNT.fullmatch(repr(iterator)) if plain else None
    if found is None:
        raise ValueError("it counts by other things than integers")
    return int(found[1]), int(found[2] or 1)


def next_of_count(iterator: Any) -> int:
    return counted(iterator)[0]


def step_of_count(iterator: Any) -> int:
    return counted(iterator)[1]


def move_on(iterator: Any, times: int) -> None:
    """Take elements from an iterator, which runs no code of the program."""
    for _ in range(times):
        next(iterator, None)


# The variables.


class GivenIteratorVariable(IteratorVariable):
    """An iterator that was there before the frame; ``taken`` counts how often it was asked."""

    def __init__(self, value: Any, source: Source) -> None:
        self.kind: Any = type(value)
        self.value = value
        self.source = source
        self.taken = 0

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return False if other.is_constant() else None

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if evaluator.graph.is_in_region:
            raise Unsupported("effect inside a region", f"next() of {self!r}")
        element = self._element(evaluator)
        self.taken += 1
        evaluator.side_effects.mutated(self)
        return element

    def _element(self, evaluator: Evaluator) -> Variable | None:
        raise NotImplementedError

    def _read(self, evaluator: Evaluator, function: Callable[[Any], Any]) -> Variable:
        """What the iterator says of itself on entry."""
        assert self.source is not None
        place = ConvertedSource(self.source, function)
        return evaluator.builder.wrap(function(self.value), place)

    def _has_more(self, evaluator: Evaluator) -> bool:
        """Whether there is an element more, which is guarded."""
        left, taken = self._read(evaluator, number_left), ConstantVariable(self.taken)
        return evaluator.binary_operation("gt", left, taken).truth(evaluator)

    def emit_mutation(self, emitter: Emitter) -> None:
        emitter.load_call(move_on, self, self.taken)
        emitter.pop()

    def __repr__(self) -> str:
        where = self.source.name() if self.source is not None else ""
        return f"{self.kind.__qualname__} object at {where}"


class _CountVariable(GivenIteratorVariable):
    def _element(self, evaluator: Evaluator) -> Variable | None:
        first = self._read(evaluator, next_of_count)
        step = self._read(evaluator, step_of_count).as_constant()
        return _moved(evaluator, first, self.taken * step)


class _RangeVariable(GivenIteratorVariable):
    def _element(self, evaluator: Evaluator) -> Variable | None:
        if not self._has_more(evaluator):
            return None
        first = self._read(evaluator, next_in_range)
        step = self._read(evaluator, step_of_range).as_constant()
        return _moved(evaluator, first, self.taken * step)


class _SequenceVariable(GivenIteratorVariable):
    """Of a list or a tuple."""

    def _element(self, evaluator: Evaluator) -> Variable | None:
        values = iterated_by(self.value)
        known = evaluator.builder.known(values)
        if any(changed is known for changed in evaluator.side_effects.mutated_variables()):
            raise Unsupported("next()", f"{self!r}, of what the frame has changed")
        if not self._has_more(evaluator):
            return None
        assert self.source is not None
        base = ConvertedSource(self.source, iterated_by)
        evaluator.guard(base, TypeIs(type(values)))
        place = _moved(evaluator, self._read(evaluator, place_of), self.taken)
        selected = selected_element(evaluator, values, base, place)
        if selected is not None:
            return selected
        position = place.as_constant()
        return evaluator.builder.wrap(values[position], ItemSource(base, position))


def _moved(evaluator: Evaluator, first: Variable, by: int) -> Variable:
    return first if by == 0 else evaluator.binary_operation("add", first, ConstantVariable(by))


_KINDS: dict[type, type[GivenIteratorVariable]] = {
    itertools.count: _CountVariable,
    type(iter(range(0))): _RangeVariable,
    type(iter([])): _SequenceVariable,
    type(iter(())): _SequenceVariable,
}


@register_wrapper(*_KINDS)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    if not _tells_its_place(value) or _is_of_a_loop(evaluator, source):
        return OpaqueVariable(value, source)
    evaluator.guard(source, TypeIs(type(value)))
    return _KINDS[type(value)](value, source)


def _tells_its_place(value: Any) -> bool:
    if type(value) is not itertools.count:
        return True
    try:
        return abs(next_of_count(value)) < _MOST
    except ValueError:
        return False


def _is_of_a_loop(evaluator: Evaluator, source: Source) -> bool:
    """Whether it is the iterator of a loop that broke, each of whose elements CPython takes."""
    return evaluator.state.frame.history.is_resumed and isinstance(source, ArgumentSource)
