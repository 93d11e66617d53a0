"""Ways in which a region changes Python state: how it is made, a step, what to see of it.

``step(s, y, i)`` changes the state ``s`` that ``make`` gives, and gives the next tensor; ``see(s)`` is what a
caller can see of the state afterwards.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class StateProgram:
    """A step that changes state; ``make`` and ``see`` run inside the compiled function or outside."""

    name: str
    make: Callable[[], Any]
    step: Callable[[Any, Tensor, int], Tensor]
    see: Callable[[Any], Any]


PROGRAMS: list[StateProgram] = []


def program(
    make: Callable[[], Any], see: Callable[[Any], Any] = lambda s: s
) -> Callable[[Callable[[Any, Tensor, int], Tensor]], Callable[[Any, Tensor, int], Tensor]]:
    """Put a step into the table under its own name."""

    def add(step: Callable[[Any, Tensor, int], Tensor]) -> Callable[[Any, Tensor, int], Tensor]:
        PROGRAMS.append(StateProgram(step.__name__, make, step, see))
        return step

    return add


# Generators.


def counting() -> Iterator[Any]:
    t = 0
    while True:
        yield t
        t = t + 1


def counting_by_send() -> Any:
    t = 0
    while True:
        v = yield t
        t = t + 1 if v is None else t + v


def adding_up() -> Any:
    t = 0.0
    while True:
        try:
            v = yield t
            t = t + (v or 0.5)
        except ValueError as error:
            t = t * 2 + error.args[0]
        finally:
            t = t + 0.125


def filling() -> Any:
    held: list[int] = []
    while True:
        held.append((yield len(held)) or 0)


def in_a_dict() -> Any:
    held = {"n": 0}
    while True:
        held["n"] += 1
        yield held["n"]


def with_a_cell() -> Any:
    n = 0

    def add() -> int:
        nonlocal n
        n += 1
        return n

    while True:
        yield add()


def over_a_list() -> Any:
    while True:
        yield from [1, 2, 3]


def over_another() -> Any:
    got = yield from counting_by_send()
    yield got


def started(generator: Any) -> Any:
    next(generator)
    return generator


def next_two(generator: Any) -> tuple[Any, Any]:
    return next(generator, None), next(generator, None)


@program(counting, next_two)
def next_of_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + next(s)


@program(lambda: started(counting_by_send()), next_two)
def send_to_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.send(1)


@program(lambda: started(counting_by_send()), next_two)
def send_none_to_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.send(None)


@program(lambda: started(adding_up()), next_two)
def throw_into_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.throw(ValueError(1.0))


@program(lambda: started(filling()), next_two)
def generator_that_fills_a_list(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.send(2)


@program(in_a_dict, next_two)
def generator_with_a_dict(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + next(s)


@program(with_a_cell, next_two)
def generator_with_a_cell(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + next(s)


@program(over_a_list, next_two)
def generator_that_delegates_to_a_list(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + next(s)


@program(lambda: started(over_another()), next_two)
def generator_that_delegates(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.send(1)


@program(counting, next_two)
def closed_generator(s: Any, y: Tensor, i: int) -> Tensor:
    if i == 3:
        s.close()
    return y * 0.5 + next(s, -1)


@program(lambda: started(adding_up()), next_two)
def close_in_every_step(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * 0.5 + next(s, -3)
    s.close()
    return y


@program(lambda: (k * 0.5 for k in range(1000)), next_two)
def generator_expression(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + next(s)


@program(counting, next_two)
def for_over_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    for k in s:
        y = y * 0.5 + k
        if k % 2:
            break
    return y


@program(counting, next_two)
def zip_over_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    for a, k in zip(range(2), s, strict=False):
        y = y * 0.5 + k + a
    return y


@program(counting, next_two)
def islice_of_a_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + sum(itertools.islice(s, 2))


@program(lambda: started(counting_by_send()), next_two)
def send_to_a_generator_at_the_end(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * 0.5
    s.send(3)
    return y


def tensor_keeper() -> Any:
    held = torch.zeros(4)
    while True:
        held = held * 0.5 + (yield held)


@program(lambda: started(tensor_keeper()), lambda s: s.send(1.0))
def generator_of_tensors(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.send(y)


async def awaiting() -> int:
    return 3


class Awaited:
    def __init__(self) -> None:
        self.n = 0

    def __await__(self) -> Any:
        self.n += 1
        yield self.n
        self.n += 1
        return self.n


async def awaits_often(a: Awaited) -> None:
    while True:
        await a


def coroutine_state() -> Any:
    a = Awaited()
    return a, awaits_often(a)


@program(coroutine_state, lambda s: (s[0].n, s[1].send(None)))
def send_to_a_coroutine(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s[1].send(None)


# Iterators.


def iterator_program(name: str, make: Callable[[], Any]) -> None:
    def step(s: Any, y: Tensor, i: int) -> Tensor:
        return y * 0.5 + next(s)

    PROGRAMS.append(StateProgram(name, make, step, next_two))


def pair_program(name: str, make: Callable[[], Any]) -> None:
    def step(s: Any, y: Tensor, i: int) -> Tensor:
        a, b = next(s)
        return y * 0.5 + a - b

    PROGRAMS.append(StateProgram(name, make, step, next_two))


LONG = [float(k % 7) for k in range(300)]
iterator_program("iter_of_a_list", lambda: iter(list(LONG)))
iterator_program("iter_of_a_tuple", lambda: iter(tuple(LONG)))
iterator_program("iter_of_a_range", lambda: iter(range(300)))
iterator_program("iter_of_a_dict", lambda: iter(dict.fromkeys(range(300))))
iterator_program("iter_of_values", lambda: iter(dict(enumerate(LONG)).values()))
iterator_program("iter_of_bytes", lambda: iter(bytes(range(250))))
iterator_program("iter_of_a_bytearray", lambda: iter(bytearray(range(250))))
iterator_program("iter_of_a_deque", lambda: iter(collections.deque(LONG)))
iterator_program("reversed_list", lambda: reversed(list(LONG)))
iterator_program("reversed_range", lambda: reversed(range(300)))
iterator_program("count", lambda: itertools.count(2, 3))
iterator_program("count_of_floats", lambda: itertools.count(0.5, 0.25))
iterator_program("cycle", lambda: itertools.cycle([1, 2, 4]))
iterator_program("chain", lambda: itertools.chain([1, 2, 4], range(300)))
iterator_program("chain_from_iterable", lambda: itertools.chain.from_iterable([[1, 2], [3]] * 99))
iterator_program("islice", lambda: itertools.islice(LONG, 2, None, 2))
iterator_program("accumulate", lambda: itertools.accumulate(LONG))
iterator_program("accumulate_by", lambda: itertools.accumulate([2.0] * 300, operator.add))
iterator_program("tee", lambda: itertools.tee(LONG)[0])
iterator_program("repeat", lambda: itertools.repeat(2.5, 300))
iterator_program("takewhile", lambda: itertools.takewhile(lambda k: k < 299, range(300)))
iterator_program("dropwhile", lambda: itertools.dropwhile(lambda k: k < 2, range(300)))
iterator_program("filterfalse", lambda: itertools.filterfalse(lambda k: k % 3, range(900)))
iterator_program("compress", lambda: itertools.compress(LONG, itertools.cycle([1, 0, 1])))
iterator_program("starmap", lambda: itertools.starmap(max, zip(LONG, reversed(LONG), strict=True)))
iterator_program("map", lambda: map(lambda k: k * 0.25, LONG))  # noqa: C417
iterator_program("filter", lambda: filter(None, LONG))
iterator_program("iter_of_a_callable", lambda: iter(counting().__next__, -1))
pair_program("enumerate", lambda: enumerate(LONG))
pair_program("zip", lambda: zip(LONG, range(300), strict=True))
pair_program("zip_of_iterators", lambda: zip(iter(LONG), counting(), strict=False))
pair_program("zip_longest", lambda: itertools.zip_longest(LONG, range(20), fillvalue=2))
pair_program("pairwise", lambda: itertools.pairwise(LONG))
pair_program("product", lambda: itertools.product(range(20), repeat=2))
pair_program("permutations", lambda: itertools.permutations(range(20), 2))
pair_program("combinations", lambda: itertools.combinations(range(30), 2))
pair_program("dict_items", lambda: iter(dict(enumerate(LONG)).items()))


class Iterating:
    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> int:
        self.n += 1
        return self.n


iterator_program("own_iterator", Iterating)
iterator_program("map_over_own_iterator", lambda: map(abs, Iterating()))
iterator_program("iter_of_getitem", lambda: iter(Indexed()))


class Indexed:
    def __getitem__(self, k: int) -> float:
        return k * 0.5


@program(lambda: [*itertools.tee(iter(LONG))], lambda s: [next_two(k) for k in s])
def two_tees(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * 0.5 + next(s[0])
    if i % 2:
        y = y - next(s[1])
    return y


@program(
    lambda: itertools.groupby(sorted(int(k) for k in LONG)),
    lambda s: [(k, list(g)) for k, g in itertools.islice(s, 1)],
)
def groupby(s: Any, y: Tensor, i: int) -> Tensor:
    for k, group in s:
        return y * 0.5 + k + len(list(itertools.islice(group, 2)))
    return y - 1


@program(lambda: (m := {"a": 1}, iter(m.values()))[:1])
def view_of_a_dict_that_grows(s: Any, y: Tensor, i: int) -> Tensor:
    values = s[0].values()
    s[0][len(values)] = 2
    return y * 0.5 + len(values)
