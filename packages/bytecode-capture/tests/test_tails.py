"""Loops that break and go on with their next element: plain Python's results, effects and exceptions."""

# The programs below are written for their bytecode.
# ruff: noqa: B007, B023, B905

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_bytecode_capture
from differential import check

LOG: list[Any] = []


@weft_bytecode_capture.disable
def note(x: Any) -> Any:
    LOG.append(x if not isinstance(x, torch.Tensor) else round(float(x.sum()), 3))
    return x


@weft_bytecode_capture.disable
def fail(number: int) -> None:
    if number == 2:
        raise ValueError(number)


def loop_else(x, items):
    for item in items:
        x = note(x + item)
        if item == 3:
            break
    else:
        x = x * 2
    return x


def handler_goes_on(x, items):
    seen = ()
    for item in items:
        try:
            fail(item)
        except ValueError as error:
            seen += (x * error.args[0],)
            continue
        x = x + item
    return x, seen


def handler_leaves_result_unbound(x, items):
    for item in items:
        try:
            y = note(fail(item))
        except ValueError:
            continue
    x = x + 1
    try:
        return x, y
    except UnboundLocalError:
        return x


def result_of_first_turn_fails(x, items):
    for item in items:
        with contextlib.suppress(ValueError):
            y = note(x * item)
            fail(item)
    return y


def inside_with(x, items):
    with contextlib.suppress(ValueError), torch.no_grad():
        for item in items:
            x = note(x + item)
            fail(item)
    return x


def nested(x, items):
    for i, item in enumerate(items):
        for other in items[i:]:
            x = note(x + item * other)
        note(item)
    return x


def cell_variables(x, items):
    functions = []
    for item in items:
        functions.append(lambda y: y * item)
        note(item)
    return [function(x) for function in functions]


def unpacked(x, items):
    for i, (a, b) in enumerate(zip(items, items[::-1])):
        note(i)
        x = x * a + b
    return x


def unpacked_wrongly(x, items):
    for a, b in zip(items, items, items):
        x = note(x)
    return x


def wrong_in_second_turn(x, items):
    pairs = iter([(1, 2), (3,)])
    for a, b in pairs:
        x = note(x * a + b)
    return x


def iterator_fails(x, items):
    def numbers():
        yield from items
        raise KeyError("end")

    for item in numbers():
        x = note(x + item)
    return x


def iterator_is_shared(x, items):
    numbers = iter(items)
    for item in numbers:
        x = note(x + item)
        for other in numbers:
            x = note(x * other)
            break
    return x, list(numbers)


def list_changes_in_the_loop(x, items):
    numbers = list(items)
    for number in numbers:
        x = note(x + number)
        if number == 1:
            numbers.append(7)
    return x, numbers


def generator_with_state(x, items):
    state = []

    def numbers():
        for item in items:
            state.append(item)
            yield x * item
            state.append(-item)

    for y in numbers():
        x = x + note(y)
    return x, state


def variable_survives(x, items):
    for item in items:
        note(x)
    return x * item


def loop_over_chain(x, items):
    for item in itertools.chain(items, items[:1]):
        x = note(x + item)
    return x


class Numbers:
    def __init__(self, x, items):
        self.x = x
        self.rest = list(items)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.rest:
            raise StopIteration
        return self.x * self.rest.pop()


def own_iterator(x, items):
    for y in Numbers(x, items):
        x = x + note(y)
    return x


def growing_tuple_is_read(x, items):
    states = (x,)
    sizes = []
    for item in items:
        x = note(x + item)
        sizes.append(len(states))
        if len(states) == 2:
            x = x + states[-1]
        states = states + (x,)
        assert states[-1] is x
    return states, sizes, states[0] is states[-1], x in states[-1:]


def growing_tuple_written(x, items):
    y = x + 1
    states = (y,)
    for item in items:
        note(y)
        y.add_(item)
        states += (y,)
    return states, [s is y for s in states]


def identities_of_tuples(x, items):
    states = (x,)
    same = []
    for item in items:
        note(x)
        before = states
        states = states + ()
        same.append(states is before)
        states += (x + item,)
        same.append(states is before)
        same.append(states == before)
    return len(states), same


def returned_longer(x, items):
    states = (x, x)
    note(x)
    return states + (x + 1,) + (x, x + 2), states


PROGRAMS = [value for name, value in list(globals().items()) if name in {
    "loop_else", "handler_goes_on", "handler_leaves_result_unbound", "result_of_first_turn_fails",
    "inside_with", "nested", "cell_variables", "unpacked", "unpacked_wrongly", "wrong_in_second_turn",
    "iterator_fails", "iterator_is_shared", "list_changes_in_the_loop", "generator_with_state",
    "variable_survives", "loop_over_chain", "own_iterator", "growing_tuple_is_read",
    "growing_tuple_written", "identities_of_tuples", "returned_longer",
}]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_plain_python(program: Callable[..., Any]) -> None:
    x = torch.randn(3)
    calls = [(x, [1, 4, 5]), (x, [1, 2, 3, 1]), (x, []), (x, [2]), (x, [3, 1, 2, 2, 1])]
    check(program, calls, fullgraph=False, reset=LOG.clear, state=lambda: list(LOG))
