"""Iterators of ``itertools``: each is its parts and a step, and the parts tell how to make it again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from ..operations import values_equal
from . import rebuilding
from .base import Variable
from .builtin_descriptors import CLASS_METHOD_CALLS
from .builtins import builtin
from .classes import CLASS_CALLS, ClassCall
from .constant import ConstantVariable
from .iterators import LazyIteratorVariable, Step
from .sequences import TupleVariable, index_value

if TYPE_CHECKING:
    from ..evaluator import Evaluator

Maker = Callable[..., Variable]


def _makes(kind: type, **defaults: Any) -> Callable[[Maker], Maker]:
    """Register how an iterator class is called; ``defaults`` are its keyword parameters' defaults."""

    def register(make: Maker) -> Maker:
        def call(
            evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
        ) -> Variable:
            if keywords.keys() - defaults.keys():
                raise Unsupported("keyword arguments of a builtin class", kind.__name__)
            named = {
                name: keywords.get(name, ConstantVariable(value))
                for name, value in defaults.items()
            }
            return make(evaluator, *arguments, **named)

        CLASS_CALLS[kind] = _checked(kind, call)
        return make

    return register


def _checked(kind: type, call: ClassCall) -> ClassCall:
    def checked(
        evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        most, least = _MOST.get(kind, _ANY), _LEAST.get(kind, 0)
        if len(arguments) < least or len(arguments) + len(keywords) > most:
            raise Unsupported("arguments of a builtin class", kind.__name__)
        return call(evaluator, arguments, keywords)

    return checked


_ANY = 1_000

_MOST: dict[type, int] = {
    itertools.islice: 4, itertools.count: 2, itertools.repeat: 2, itertools.cycle: 1,
    itertools.accumulate: 3, itertools.takewhile: 2, itertools.dropwhile: 2, itertools.starmap: 2,
    itertools.compress: 2, itertools.filterfalse: 2, itertools.pairwise: 1, itertools.groupby: 2,
    itertools.combinations: 2, itertools.permutations: 2, itertools.combinations_with_replacement: 2,
}  # fmt: skip
_LEAST: dict[type, int] = {
    itertools.islice: 2, itertools.repeat: 1, itertools.cycle: 1, itertools.accumulate: 1,
    itertools.takewhile: 2, itertools.dropwhile: 2, itertools.starmap: 2, itertools.compress: 2,
    itertools.filterfalse: 2, itertools.pairwise: 1, itertools.combinations: 2,
    itertools.permutations: 1, itertools.groupby: 1, itertools.combinations_with_replacement: 2,
}  # fmt: skip


def _is_none(variable: Variable) -> bool:
    return variable.is_constant() and variable.as_constant() is None


@_makes(itertools.chain)
def _chain(evaluator: Evaluator, *iterables: Variable) -> Variable:
    return _chained(evaluator, TupleVariable(iterables).iterator(evaluator))


def _chain_from_iterable(evaluator: Evaluator, kind: type, iterables: Variable) -> Variable:
    return _chained(evaluator, iterables.iterator(evaluator))


CLASS_METHOD_CALLS[itertools.chain, "from_iterable"] = _chain_from_iterable


def _chained(evaluator: Evaluator, iterables: Variable) -> Variable:
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


@_makes(itertools.islice)
def _islice(evaluator: Evaluator, iterable: Variable, *bounds: Variable) -> Variable:
    numbers = [None if _is_none(bound) else index_value(evaluator, bound) for bound in bounds]
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


@_makes(itertools.count, start=0, step=1)
def _count(evaluator: Evaluator, *arguments: Variable, start: Variable, step: Variable) -> Variable:
    first, width = [*arguments, *(start, step)[len(arguments) :]]
    if not first.is_constant() or not width.is_constant():
        raise Unsupported("arguments of a builtin class", "count")
    current: Variable = first

    def advance(evaluator: Evaluator) -> Variable | None:
        nonlocal current
        element = current
        current = evaluator.binary_operation("add", current, width)
        return element

    return LazyIteratorVariable(itertools.count, advance, lambda: [current, width])


@_makes(itertools.repeat, times=None)
def _repeat(evaluator: Evaluator, value: Variable, *number: Variable, times: Variable) -> Variable:
    given = number[0] if number else times
    left = None if not number and _is_none(times) else max(index_value(evaluator, given), 0)

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


@_makes(itertools.cycle)
def _cycle(evaluator: Evaluator, iterable: Variable) -> Variable:
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


@_makes(itertools.accumulate, func=None, initial=None)
def _accumulate(
    evaluator: Evaluator,
    iterable: Variable,
    *function: Variable,
    func: Variable,
    initial: Variable,
) -> Variable:
    iterator = iterable.iterator(evaluator)
    combine = function[0] if function else func
    total: Variable | None = None
    first: Variable | None = None if _is_none(initial) else initial

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
        elif _is_none(combine):
            total = evaluator.binary_operation("add", total, element)
        else:
            total = combine.call(evaluator, [total, element], {})
        return total

    def parts() -> list[Variable]:
        given = [] if total is None else [total]
        return [iterator, combine, initial, *given]

    return LazyIteratorVariable(itertools.accumulate, step, parts, rebuilding.accumulate)


@_makes(itertools.zip_longest, fillvalue=None)
def _zip_longest(evaluator: Evaluator, *iterables: Variable, fillvalue: Variable) -> Variable:
    iterators: list[Variable | None] = [iterable.iterator(evaluator) for iterable in iterables]

    def step(evaluator: Evaluator) -> Variable | None:
        elements = []
        for place, iterator in enumerate(iterators):
            element = None if iterator is None else iterator.next_or_none(evaluator)
            if element is None and iterator is not None:
                iterators[place] = None
                if not any(iterators):
                    return None
            elements.append(fillvalue if element is None else element)
        return TupleVariable(elements) if any(iterators) else None

    def parts() -> list[Variable]:
        return [fillvalue, *(iterator or TupleVariable() for iterator in iterators)]

    return LazyIteratorVariable(itertools.zip_longest, step, parts, rebuilding.zip_longest)


def _while(kind: type, takes: bool) -> None:
    @_makes(kind)
    def _call(evaluator: Evaluator, predicate: Variable, iterable: Variable) -> Variable:
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


@_makes(itertools.starmap)
def _starmap(evaluator: Evaluator, function: Variable, iterable: Variable) -> Variable:
    iterator = iterable.iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        arguments = iterator.next_or_none(evaluator)
        if arguments is None:
            return None
        return function.call(evaluator, arguments.iterate(evaluator), {})

    return LazyIteratorVariable(itertools.starmap, step, lambda: [function, iterator])


@_makes(itertools.compress, selectors=None)
def _compress(
    evaluator: Evaluator, data: Variable, *selecting: Variable, selectors: Variable
) -> Variable:
    elements = data.iterator(evaluator)
    choices = (selecting[0] if selecting else selectors).iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        while True:
            element = elements.next_or_none(evaluator)
            choice = None if element is None else choices.next_or_none(evaluator)
            if choice is None:
                return None
            if choice.truth(evaluator):
                return element

    return LazyIteratorVariable(itertools.compress, step, lambda: [elements, choices])


@_makes(itertools.filterfalse)
def _filterfalse(evaluator: Evaluator, predicate: Variable, iterable: Variable) -> Variable:
    iterator = iterable.iterator(evaluator)

    def step(evaluator: Evaluator) -> Variable | None:
        while (element := iterator.next_or_none(evaluator)) is not None:
            tested = element
            if not _is_none(predicate):
                tested = predicate.call(evaluator, [element], {})
            if not tested.truth(evaluator):
                return element
        return None

    return LazyIteratorVariable(itertools.filterfalse, step, lambda: [predicate, iterator])


@_makes(itertools.pairwise)
def _pairwise(evaluator: Evaluator, iterable: Variable) -> Variable:
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
        key = value if _is_none(self._key) else self._key.call(evaluator, [value], {})
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


@_makes(itertools.groupby, key=None)
def _groupby(
    evaluator: Evaluator, iterable: Variable, *function: Variable, key: Variable
) -> Variable:
    groups = _Groups(iterable.iterator(evaluator), function[0] if function else key)
    return LazyIteratorVariable(itertools.groupby, groups.step)


def _combinatoric(kind: Any, choose: Callable[..., Any]) -> None:
    """Iterators that take their iterables in at once: positions are chosen, elements follow."""

    def make(evaluator: Evaluator, *arguments: Variable, **named: Variable) -> Variable:
        pools, chosen, again = choose(evaluator, *arguments, **named)
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

    defaults = {"repeat": 1} if kind is itertools.product else {}
    _makes(kind, **defaults)(make)


_Choice = tuple[list[list[Variable]], Any, list[Variable]]
"""Where each element of a choice is taken from, the positions chosen, and what makes the iterator again."""


def _product(evaluator: Evaluator, *iterables: Variable, repeat: Variable) -> _Choice:
    pools = [iterable.iterate(evaluator) for iterable in iterables]
    pools *= max(index_value(evaluator, repeat), 0)
    chosen = itertools.product(*(range(len(pool)) for pool in pools))
    return pools, chosen, [TupleVariable(pool) for pool in pools]


def _choice(kind: Any) -> Callable[..., _Choice]:
    def choose(evaluator: Evaluator, iterable: Variable, *count: Variable) -> _Choice:
        pool = iterable.iterate(evaluator)
        size = len(pool) if not count or _is_none(count[0]) else index_value(evaluator, count[0])
        chosen = evaluator.pure(kind, range(len(pool)), size)
        return [pool] * size, chosen, [TupleVariable(pool), ConstantVariable(size)]

    return choose


_combinatoric(itertools.product, _product)
for _kind in (
    itertools.combinations, itertools.permutations, itertools.combinations_with_replacement,
):  # fmt: skip
    _combinatoric(_kind, _choice(_kind))


@builtin(itertools.tee)
def _tee(evaluator: Evaluator, iterable: Variable, count: Variable | None = None) -> Variable:
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

    number = 2 if count is None else index_value(evaluator, count)
    return TupleVariable([LazyIteratorVariable(_TEE, reader()) for _ in range(number)])


_TEE: type = type(itertools.tee([])[0])
