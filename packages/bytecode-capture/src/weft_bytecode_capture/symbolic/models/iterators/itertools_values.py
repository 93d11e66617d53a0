"""Iterators of ``itertools``: each is its parts and a step, and the parts tell how to make it again."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.operations import values_equal
from ..containers.sequences import TupleVariable
from ..containers.slices import index_value
from ..table import model, models
from . import rebuilding
from .builtin_iterators import LazyIteratorVariable, NextItem


@model(itertools.chain)
def _chain(evaluator: Evaluator, *iterables: Variable) -> Variable:
    return _chained(TupleVariable(iterables).iterator(evaluator))


@model(vars(itertools.chain)["from_iterable"])
def _chain_from_iterable(evaluator: Evaluator, kind: type, iterables: Variable, /) -> Variable:
    return _chained(iterables.iterator(evaluator))


def _chained(iterables: Variable) -> Variable:
    current: Variable | None = None

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal current
        while True:
            if current is None:
                iterable = iterables.next_or_none(evaluator)
                if iterable is None:
                    return None
                current = iterable.iterator(evaluator)
            element = current.next_or_none(evaluator)
            if element is not None:
                return element
            current = None

    def parts() -> list[Variable]:
        return [iterables] if current is None else [iterables, current]

    return LazyIteratorVariable(itertools.chain, step, parts, rebuilding.chain)


@model(itertools.islice)
def _islice(
    evaluator: Evaluator,
    iterable: Variable,
    first: Variable,
    second: Variable | None = None,
    third: Variable | None = None,
    /,
) -> Variable:
    bounds = [bound for bound in (first, second, third) if bound is not None]
    numbers = [None if bound.is_none() else index_value(evaluator, bound) for bound in bounds]
    evaluator.pure(itertools.islice, (), *numbers)
    wanted = slice(*numbers)
    iterator: Variable | None = iterable.iterator(evaluator)
    taken, position = 0, wanted.start or 0
    stop, width = wanted.stop, wanted.step or 1

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal iterator, taken, position
        element = None
        while iterator is not None and taken <= position:
            ended = taken == position and stop is not None and taken >= stop
            element = None if ended else iterator.next_or_none(evaluator)
            if element is None:
                break
            taken += 1
        if element is None:
            iterator = None  # at its end for good
        else:
            position = position + width if stop is None else min(position + width, stop)
        return element

    def parts() -> list[Variable]:
        rest = TupleVariable() if iterator is None else iterator
        limits = [position - taken, None if stop is None else max(stop - taken, 0), width]
        return [rest, *map(ConstantVariable, limits)]

    return LazyIteratorVariable(itertools.islice, step, parts)


@model(itertools.count)
def _count(
    evaluator: Evaluator, start: Variable | None = None, step: Variable | None = None
) -> Variable:
    first, width = start or ConstantVariable(0), step or ConstantVariable(1)
    are_numbers = all(part.python_type() in (int, float) for part in (first, width))
    if not are_numbers and not (first.is_constant() and width.is_constant()):
        raise Unsupported("arguments of a builtin class", "count")
    current: Variable = first

    def advance(evaluator: Evaluator) -> Variable | None:
        nonlocal current
        element = current
        current = evaluator.binary_operation("add", current, width)
        return element

    return LazyIteratorVariable(itertools.count, advance, lambda: [current, width])


@model(itertools.repeat)
def _repeat(evaluator: Evaluator, object: Variable, times: Variable | None = None) -> Variable:
    value = object
    left = None if times is None else max(index_value(evaluator, times), 0)

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal left
        if left is None:
            return value
        if left == 0:
            return None
        left -= 1
        return value

    def parts() -> list[Variable]:
        return [value] if left is None else [value, ConstantVariable(left)]

    return LazyIteratorVariable(itertools.repeat, step, parts)


@model(itertools.cycle)
def _cycle(evaluator: Evaluator, iterable: Variable, /) -> Variable:
    iterator = iterable.iterator(evaluator)
    saved: list[Variable] = []
    again: int | None = None

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal again
        if again is None:
            element = iterator.next_or_none(evaluator)
            if element is not None:
                saved.append(element)
                return element
            again = 0
        if not saved:
            return None
        again += 1
        return saved[(again - 1) % len(saved)]

    def parts() -> list[Variable]:
        place = 0 if again is None or not saved else again % len(saved)
        return [
            iterator if again is None else TupleVariable(),
            TupleVariable(saved[place:] + saved[:place]),
        ]

    return LazyIteratorVariable(itertools.cycle, step, parts, rebuilding.cycle)


@model(itertools.accumulate)
def _accumulate(
    evaluator: Evaluator,
    iterable: Variable,
    func: Variable | None = None,
    *,
    initial: Variable | None = None,
) -> Variable:
    iterator = iterable.iterator(evaluator)
    combine = func or ConstantVariable(None)
    start = initial or ConstantVariable(None)
    total: Variable | None = None
    first: Variable | None = None if start.is_none() else start

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal total, first
        if total is None and first is not None:
            total, first = first, None
            return total
        element = iterator.next_or_none(evaluator)
        if element is None:
            return None
        if total is None:
            total = element
        elif combine.is_none():
            total = evaluator.binary_operation("add", total, element)
        else:
            total = combine.call(evaluator, [total, element], {})
        return total

    def parts() -> list[Variable]:
        given = [] if total is None else [total]
        return [iterator, combine, start, *given]

    return LazyIteratorVariable(itertools.accumulate, step, parts, rebuilding.accumulate)


@model(itertools.zip_longest)
def _zip_longest(
    evaluator: Evaluator, *iterables: Variable, fillvalue: Variable | None = None
) -> Variable:
    filling = fillvalue or ConstantVariable(None)
    iterators: list[Variable | None] = [iterable.iterator(evaluator) for iterable in iterables]

    def step(evaluator: Evaluator) -> Variable | None:
        elements = []
        for place, iterator in enumerate(iterators):
            element = None if iterator is None else iterator.next_or_none(evaluator)
            if element is None and iterator is not None:
                iterators[place] = None
                if not any(iterators):
                    return None
            elements.append(filling if element is None else element)
        return TupleVariable(elements) if any(iterators) else None

    def parts() -> list[Variable]:
        return [filling, *(iterator or TupleVariable() for iterator in iterators)]

    return LazyIteratorVariable(itertools.zip_longest, step, parts, rebuilding.zip_longest)


def _while(kind: type, takes: bool) -> None:
    @model(kind)
    def _call(evaluator: Evaluator, predicate: Variable, iterable: Variable, /) -> Variable:
        iterator = iterable.iterator(evaluator)
        passed = False

        def take(evaluator: Evaluator) -> Variable | None:
            nonlocal passed
            element = None if passed else iterator.next_or_none(evaluator)
            if element is not None and not predicate.call(evaluator, [element], {}).truth(
                evaluator
            ):
                passed = True
                return None
            return element

        def drop(evaluator: Evaluator) -> Variable | None:
            nonlocal passed
            while (element := iterator.next_or_none(evaluator)) is not None:
                if passed or not predicate.call(evaluator, [element], {}).truth(evaluator):
                    passed = True
                    return element
            return None

        def parts() -> list[Variable]:
            rest = TupleVariable() if takes and passed else iterator
            return [ConstantVariable(passed), predicate, rest]

        make = rebuilding.takewhile if takes else rebuilding.dropwhile
        return LazyIteratorVariable(kind, take if takes else drop, parts, make)


_while(itertools.takewhile, True)
_while(itertools.dropwhile, False)


@model(itertools.starmap)
def _starmap(evaluator: Evaluator, function: Variable, iterable: Variable, /) -> Variable:
    iterator = iterable.iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        arguments = iterator.next_or_none(evaluator)
        if arguments is None:
            return None
        return function.call(evaluator, arguments.iterate(evaluator), {})

    return LazyIteratorVariable(itertools.starmap, step, lambda: [function, iterator])


@model(itertools.compress)
def _compress(evaluator: Evaluator, data: Variable, selectors: Variable) -> Variable:
    elements, choices = data.iterator(evaluator), selectors.iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        while True:
            element = elements.next_or_none(evaluator)
            choice = None if element is None else choices.next_or_none(evaluator)
            if choice is None:
                return None
            if choice.truth(evaluator):
                return element

    return LazyIteratorVariable(itertools.compress, step, lambda: [elements, choices])


@model(itertools.filterfalse)
def _filterfalse(evaluator: Evaluator, predicate: Variable, iterable: Variable, /) -> Variable:
    iterator = iterable.iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        while (element := iterator.next_or_none(evaluator)) is not None:
            tested = element
            if not predicate.is_none():
                tested = predicate.call(evaluator, [element], {})
            if not tested.truth(evaluator):
                return element
        return None

    return LazyIteratorVariable(itertools.filterfalse, step, lambda: [predicate, iterator])


@model(itertools.pairwise)
def _pairwise(evaluator: Evaluator, iterable: Variable, /) -> Variable:
    iterator = iterable.iterator(evaluator)
    previous: Variable | None = None

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal previous
        if previous is None:
            previous = iterator.next_or_none(evaluator)
        first = previous
        # The iterator may ask for the next pair itself: it finds the first element noted.
        second = None if first is None else iterator.next_or_none(evaluator)
        previous = second
        if first is None or second is None:
            return None
        return TupleVariable([first, second])

    def parts() -> list[Variable]:
        return [iterator] if previous is None else [iterator, previous]

    return LazyIteratorVariable(itertools.pairwise, step, parts, rebuilding.pairwise)


def _batches(
    evaluator: Evaluator, iterable: Variable, size: Variable, strict: Variable | None
) -> Variable:
    """``itertools.batched``: tuples of ``size`` elements, the last of as many as are left."""
    count = index_value(evaluator, size)
    if count < 1:
        evaluator.raise_error(ValueError, "n must be at least one")
    is_strict = strict is not None and strict.truth(evaluator)
    iterator = iterable.iterator(evaluator)
    has_ended = False

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal has_ended
        elements: list[Variable] = []
        while not has_ended and len(elements) < count:
            element = iterator.next_or_none(evaluator)
            if element is None:
                has_ended = is_strict or not elements
                break
            elements.append(element)
        if elements and is_strict and len(elements) < count:
            evaluator.raise_error(ValueError, "batched(): incomplete batch")
        return TupleVariable(elements) if elements else None

    def parts() -> list[Variable]:
        left = TupleVariable([]).iterator(evaluator) if has_ended else iterator
        return [left, ConstantVariable(count), ConstantVariable(is_strict)]

    return LazyIteratorVariable(vars(itertools)["batched"], step, parts, rebuilding.batched)


if sys.version_info >= (3, 13):

    @model(itertools.batched)
    def _batched(
        evaluator: Evaluator, iterable: Variable, n: Variable, *, strict: Variable | None = None
    ) -> Variable:
        return _batches(evaluator, iterable, n, strict)

elif sys.version_info >= (3, 12):

    @model(itertools.batched)
    def _batched(evaluator: Evaluator, iterable: Variable, n: Variable) -> Variable:
        return _batches(evaluator, iterable, n, None)


# ``itertools.product`` and its kin, whose elements are choices from sequences.


def _combinatoric(
    evaluator: Evaluator,
    kind: Any,
    pools: list[list[Variable]],
    chosen: Iterator[Any],
    again: list[Variable],
) -> Variable:
    """An iterator that takes its iterables in at once: positions are chosen in the ``pools``.

    ``again`` makes it again.
    """
    given = 0

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal given
        positions = next(chosen, None)
        if positions is None:
            return None
        given += 1
        pairs = zip(pools, positions, strict=True)
        return TupleVariable([pool[position] for pool, position in pairs])

    def parts() -> list[Variable]:
        return [evaluator.wrap_known(kind), ConstantVariable(given), *again]

    return LazyIteratorVariable(kind, step, parts, rebuilding.combinatoric)


@model(itertools.product)
def _product(
    evaluator: Evaluator, *iterables: Variable, repeat: Variable | None = None
) -> Variable:
    pools = [iterable.iterate(evaluator) for iterable in iterables]
    pools *= 1 if repeat is None else max(index_value(evaluator, repeat), 0)
    chosen = itertools.product(*(range(len(pool)) for pool in pools))
    again: list[Variable] = [TupleVariable(pool) for pool in pools]
    return _combinatoric(evaluator, itertools.product, pools, chosen, again)


@model(itertools.permutations)
def _permutations(evaluator: Evaluator, iterable: Variable, r: Variable | None = None) -> Variable:
    size = None if r is None or r.is_none() else index_value(evaluator, r)
    return _choices(evaluator, itertools.permutations, iterable.iterate(evaluator), size)


@models(itertools.combinations, itertools.combinations_with_replacement)
def _choose(kind: Any, evaluator: Evaluator, iterable: Variable, r: Variable) -> Variable:
    pool = iterable.iterate(evaluator)
    return _choices(evaluator, kind, pool, index_value(evaluator, r))


def _choices(evaluator: Evaluator, kind: Any, pool: list[Variable], size: int | None) -> Variable:
    count = len(pool) if size is None else size
    chosen = evaluator.pure(kind, range(len(pool)), count)
    again: list[Variable] = [TupleVariable(pool), ConstantVariable(count)]
    return _combinatoric(evaluator, kind, [pool] * count, chosen, again)


# Iterators of ``itertools`` that share another one: groups, and tees.


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

    def reader() -> NextItem:
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
