"""Comprehensions, which CPython 3.12 inlines: scopes, cells and what the variable held before."""

# The programs below are written for their scopes.
# ruff: noqa: B023, C400, C416

from __future__ import annotations

import time

import pytest
from differential import check


def plain(x):
    return [i * x for i in range(3)], {i: i + x for i in range(2)}, {i % 2 for i in range(4)}


def variable_is_restored(i):
    values = [i for i in range(3)]
    return values, i


def unbound_stays_unbound(x):
    values = [j for j in range(x)]
    try:
        return j
    except NameError as error:
        return type(error).__name__, values


def cells(x):
    k = 7
    functions = [lambda: k + x for k in range(3)]
    return [f() for f in functions], k


def outer_cell(x):
    i = x

    def read():
        return i

    values = [i for i in range(3)]
    return read(), values, i


def nested(x):
    return [[i * j for j in range(i)] for i in range(x)], [
        a for b in [[1, 2], [x]] for a in b if a > 1
    ]


def raises_inside(x):
    i = "kept"
    try:
        return [1 // (i - x) for i in range(3)]
    except ZeroDivisionError:
        return i


def generator_expressions(x):
    return sum(i for i in range(x)), list(i * i for i in range(x)), any(i > 1 for i in range(x))


class Counted:
    """Counts how often it is iterated over."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        self.count += 1
        return iter((1, 2))


def takes_its_iterator_when_made(x):
    counted = Counted()
    made = (i + x for i in counted)
    before, number = counted.count, 5
    try:
        (i for i in number)
    except TypeError as error:
        return before, list(made), counted.count, str(error)


def walrus(x):
    return [y := i for i in range(x)], y


class Scope:
    values = [n for n in range(2)]


def in_a_class(x):
    return Scope.values, x


def broken(values):
    """A graph break while the cell of ``values`` lies on the stack."""

    def read():
        return values

    found = [(time.sleep(0), values)[1] for values in values]
    return found, values, read()


def broken_with_cells(values):
    def read():
        return values

    kept = [(time.sleep(0), lambda: values)[1] for values in values]
    return [f() for f in kept], values, read()


def with_free_variable(values):
    def functions(x):
        return [lambda: values + x for values in values]

    return functions


FREE = with_free_variable((1, 2))


def inlined(x):
    return [f() for f in FREE(x)], x


@pytest.mark.parametrize(
    "function",
    [
        plain, variable_is_restored, unbound_stays_unbound, cells, outer_cell, nested, raises_inside,
        generator_expressions, takes_its_iterator_when_made, walrus, in_a_class,
    ],
)  # fmt: skip
def test_comprehensions(function):
    check(function, [(1,), (2,), (3,)])


def test_break_inside():
    check(broken, [([1, 2],), ([3],), ([],)], fullgraph=False)
    check(broken_with_cells, [([1, 2],), ([3],), ([],)], fullgraph=False)


def test_variable_named_as_a_free_one():
    check(lambda x: [f() for f in FREE(x)], [(1,), (2,)], fullgraph=False)
    check(inlined, [(1,), (2,)], fullgraph=False)
