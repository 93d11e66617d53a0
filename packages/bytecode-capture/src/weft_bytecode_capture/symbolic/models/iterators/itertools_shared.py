"""Iterators of ``itertools`` that share another one: groups, and tees."""

from __future__ import annotations

import itertools

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.operations import values_equal
from ..containers.sequences import TupleVariable
from ..containers.slices import index_value
from ..table import model
from .builtin_iterators import LazyIteratorVariable, Step


class _Groups:
    """The state of a ``groupby``: its groups end when it goes on."""

    def __init__(self, iterator: Variable, key: Variable) -> None:
        self._iterator = iterator
        self._key = key
        self._value: Variable | None = None
        self._current: Variable | None = None  # the key of ``_value``
        self._target: Variable | None = None  # the key of the group given last
        self._group = 0

    def _advance(self, evaluator: Evaluator) -> bool:
        value = self._iterator.next_or_none(evaluator)
        if value is None:
            return False
        key = value if self._key.is_none() else self._key.call(evaluator, [value], {})
        self._value, self._current = value, key
        return True

    def _is_in_group(self, evaluator: Evaluator) -> bool:
        assert self._current is not None
        assert self._target is not None
        return values_equal(evaluator, self._target, self._current)

    def step(self, evaluator: Evaluator) -> Variable | None:
        """The next key, with the iterator of its group."""
        self._group += 1
        while self._current is None or (self._target is not None and self._is_in_group(evaluator)):
            if not self._advance(evaluator):
                return None
        self._target = self._current
        number = self._group

        def member(evaluator: Evaluator) -> Variable | None:
            if number != self._group:
                return None
            if self._value is None and not self._advance(evaluator):
                return None
            if not self._is_in_group(evaluator):
                return None
            element, self._value = self._value, None
            return element

        return TupleVariable([self._current, LazyIteratorVariable(_GROUP, member)])


_GROUP: type = type(next(itertools.groupby([0]))[1])


@model(itertools.groupby)
def _groupby(evaluator: Evaluator, iterable: Variable, key: Variable | None = None) -> Variable:
    groups = _Groups(iterable.iterator(evaluator), key or ConstantVariable(None))
    return LazyIteratorVariable(itertools.groupby, groups.step)


@model(itertools.tee)
def _tee(evaluator: Evaluator, iterable: Variable, n: Variable | None = None, /) -> Variable:
    """Iterators that share what the first of them to get there took."""
    iterator = iterable.iterator(evaluator)
    taken: list[Variable] = []

    def reader() -> Step:
        position = 0

        def step(evaluator: Evaluator) -> Variable | None:
            nonlocal position
            if position == len(taken):
                element = iterator.next_or_none(evaluator)
                if element is None:
                    return None
                taken.append(element)
            position += 1
            return taken[position - 1]

        return step

    number = 2 if n is None else index_value(evaluator, n)
    return TupleVariable([LazyIteratorVariable(_TEE, reader()) for _ in range(number)])


_TEE: type = type(itertools.tee([])[0])
