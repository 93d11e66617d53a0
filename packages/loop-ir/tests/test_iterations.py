"""What iterations of a loop touch: the tests on linear forms against every element counted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import sympy
from weft_loop_ir import Count
from weft_loop_ir.schedule.iterations import (
    IterationAccess,
    are_independent,
    covers,
    keep_to_themselves,
    trip_count,
)


def touched(access: IterationAccess, trips: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Each element that an access touches, with the iteration and the point of the loops."""
    for number in range(trips):
        for point in itertools.product(*(range(n) for n in access.extents)):
            place = sum(s * i for s, i in zip(access.strides, point, strict=True))
            yield number, point, access.step * number + place + int(access.rest)


def random_accesses(source: random.Random) -> tuple[list[IterationAccess], int]:
    """One to three accesses to a buffer over the same loops, of strides that nearly fit."""
    trips, rank = source.randint(1, 4), source.randint(0, 2)
    extents = tuple(source.randint(1, 4) for _ in range(rank))
    steps = (0, 1, 2, 3, 4, 6, 8, 12, 16, -1, -4, -8)
    strides = tuple(source.choice(steps) for _ in range(rank))
    step = source.choice(steps)
    accesses = []
    for number in range(source.randint(1, 3)):
        other = source.random() < 0.15
        accesses.append(
            IterationAccess(
                "buffer",
                number == 0,
                source.choice(steps) if source.random() < 0.2 else step,
                tuple(source.choice(steps) for _ in range(rank)) if other else strides,
                extents,
                sympy.Integer(source.choice((0, 0, 0, 1, 2, 4, -4, 8, -8, 16))),
                False,
            )
        )
    return accesses, trips


def test_what_is_proved_is_so() -> None:
    source = random.Random(0)
    proved = {"independent": 0, "own": 0, "covers": 0}
    for _ in range(1500):
        accesses, trips = random_accesses(source)
        places: dict[int, list[tuple[int, tuple[int, ...], bool]]] = {}
        for access in accesses:
            for number, point, element in touched(access, trips):
                places.setdefault(element, []).append((number, point, access.is_store))
        shared = [users for users in places.values() if any(store for _, _, store in users)]
        if are_independent(accesses, sympy.Integer(trips)):
            proved["independent"] += 1
            assert all(len({number for number, _, _ in users}) == 1 for users in shared)
        if keep_to_themselves(accesses, sympy.Integer(trips)):
            proved["own"] += 1
            assert all(len({point for _, point, _ in users}) == 1 for users in shared)
        first = accesses[0]
        elements = [element for _, _, element in touched(first, 1)]
        size = max(elements) + 1  # stores are within the buffer
        if min(elements) == 0 and covers(first, sympy.Integer(size)):
            proved["covers"] += 1
            assert sorted(elements) == list(range(size))
    assert min(proved.values()) > 15


def test_rows_of_symbolic_size() -> None:
    rows, row = sympy.symbols("s0 s1", integer=True, positive=True)
    store = IterationAccess("buffer", True, row, (1,), (row,), sympy.S.Zero, False)
    before = IterationAccess("buffer", False, row, (1,), (row,), -row, False)
    column = IterationAccess("buffer", True, 1, (row,), (rows,), sympy.S.Zero, False)
    assert are_independent([store], rows) and keep_to_themselves([store], rows)
    assert not are_independent([store, before], rows) and keep_to_themselves([store, before], rows)
    assert are_independent([column], row) and not are_independent([column], row + 1)
    whole = IterationAccess("buffer", True, 0, (row, 1), (rows, row), sympy.S.Zero, False)
    assert covers(whole, rows * row) and not covers(whole, rows * row + 1)


@pytest.mark.parametrize("bounds", [(0, 7, 1), (3, 3, 1), (5, 2, 1), (1, 9, 3), (9, 0, -2)])
def test_the_number_of_iterations(bounds: tuple[int, int, int]) -> None:
    start, stop, step = bounds
    symbol = sympy.Symbol("u0", integer=True)
    count = Count(symbol, sympy.Integer(start), step, sympy.Integer(stop))
    assert int(trip_count(count)) == len(range(start, stop, step))
    stopping = sympy.Symbol("n", integer=True)
    trips = trip_count(Count(symbol, sympy.Integer(start), step, stopping))
    assert int(trips.xreplace({stopping: sympy.Integer(stop)})) == len(range(start, stop, step))
