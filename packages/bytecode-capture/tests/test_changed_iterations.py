"""Iterators: lengths that they tell, containers that change meanwhile, and what cannot be iterated."""

from __future__ import annotations

import collections
import functools
import operator
import sys

import pytest
import torch
from differential import attempt, check

X = torch.ones(2)


def told(out, iterator):
    attempt(out, lambda: iterator.__length_hint__())
    next(iterator)
    attempt(out, lambda: operator.length_hint(iterator))
    list(iterator)
    attempt(out, lambda: iterator.__length_hint__())
    attempt(out, lambda: len(iterator))


def length_hints(x):
    out = []
    iterables = [1, 2, 3], (1, 2), {1: 2}, {1: 2}.items(), {1, 2}, range(4), "abc"
    for iterable in iterables:
        told(out, iter(iterable))
    told(out, reversed([1, 2]))
    return out, x + 1


def sets_in_sets(x):
    out = []
    s = {frozenset([1]), 2}
    t = {1}
    attempt(out, lambda: t in s)
    attempt(out, lambda: s.discard({1}))
    attempt(out, lambda: s.remove({9}))
    attempt(out, lambda: s.remove([9]))
    attempt(out, lambda: [] in s)
    attempt(out, lambda: s.add({3}))
    return out, s, x


def changed_meanwhile(x):
    out = []

    def a():
        s = {1, 2}
        for i in s:
            s.add(i + 10)

    def b():
        s = {1, 2}
        it = iter(s)
        next(it)
        s.add(5)
        r = []
        for _ in range(2):
            try:
                next(it)
            except RuntimeError as e:
                r.append(str(e))
        s.discard(5)
        try:
            next(it)
        except RuntimeError as e:
            r.append(str(e))
        return r, it.__length_hint__()

    def c():
        d = collections.deque([1, 2])
        for _i in d:
            d.append(3)

    def c2():
        d = collections.deque([1, 2])
        it = iter(d)
        d.append(3)
        r = []
        for _ in range(2):
            try:
                next(it)
            except RuntimeError as e:
                r.append(str(e))
        return r

    class E:
        def __init__(self, d):
            self.d = d

        def __eq__(self, o):
            self.d.append(1)
            return False

    def e(name):
        d = collections.deque([1, 2, 3])
        return getattr(d, name)(E(d)) if name != "in" else E(d) in d

    for f in (a, b, c, c2, lambda: e("count"), lambda: e("remove"), lambda: e("in")):
        attempt(out, f)
    return out, x


def slots_in_a_list(x):
    class S:
        __slots__ = ["__b", "a"]

        def __init__(self, a):
            self.a = a
            self.__b = 2 * a

        def both(self):
            return self.a + self.__b

    s = S(x)
    try:
        s.c = 1
    except AttributeError as e:
        m = str(e)
    return s.both(), m, S.__slots__


def loop_over_a_function(x):
    for _v in len:
        pass


FUNCTIONS = iter, list, next, tuple, set, sum, sorted, max, enumerate, zip, any


def refused(out, value):
    def unpacked():
        first, second = value
        return first, second

    for function in FUNCTIONS:
        attempt(out, functools.partial(function, value))
    attempt(out, lambda: map(len, value))
    attempt(out, lambda: [*value])
    attempt(out, lambda: 3 in value)
    attempt(out, unpacked)


def without_elements(x):
    out = []
    for value in (len, list, int, torch.Tensor, torch.nn.Linear, None, 3, ..., "a".upper, torch):
        refused(out, value)
    for value in (told, slice(1)):
        refused(out, value)
    return out, x + 1


@pytest.mark.parametrize(
    "program",
    [
        length_hints,
        sets_in_sets,
        changed_meanwhile,
        slots_in_a_list,
        loop_over_a_function,
        without_elements,
    ],
)
def test_program(program):
    check(program, [(X,)], fullgraph=True)


def suspended(x):
    def given():
        states.append(generator.gi_suspended)
        yield 1
        states.append(generator.gi_suspended)

    states, generator = [], given()
    states.append(generator.gi_suspended)
    next(generator)
    states.append(generator.gi_suspended)
    list(generator)
    return [*states, generator.gi_suspended], x


def too_long(x):
    out, items = [], [1, 2, 3]
    attempt(out, lambda: [1] * sys.maxsize)
    attempt(out, lambda: [1, 2] * (sys.maxsize // 2))
    attempt(out, lambda: (1,) * sys.maxsize)
    attempt(out, lambda: [] * sys.maxsize)
    try:
        items *= sys.maxsize
    except MemoryError:
        out.append(items)
    return out, x


@pytest.mark.parametrize("program", [suspended, too_long])
def test_states_of_generators_and_sequences_that_are_too_long(program):
    check(program, [(X,)], fullgraph=True)
