"""Loops over a list that another kept loop has filled: kept too, one graph for all lengths, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft

from .regions_kept import regions_in
from .test_gradients import check
from .test_gradients import compiled_regions as compiled_regions

Program = Callable[[torch.Tensor], Any]


def filled(x: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for i in range(x.shape[0]):
        found.append(torch.tanh(x[i]) * 2)
    return found


def summed(x: torch.Tensor) -> Any:
    total = x[0] * 0
    for h in filled(x):
        total = total + h
    return total


def recurrent(x: torch.Tensor) -> Any:
    h, states = x[0] * 0, []
    for row in x:
        h = torch.tanh(row + h)
        states.append(h)
    total = x[0] * 1
    for state in states:
        total = torch.sin(total * state)
    return total, h


def numbered(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for i, h in enumerate(states):
        total = total + h * i
    return total, torch.stack(states)


def beside_rows(x: torch.Tensor) -> Any:
    total = x[0] * 0
    for h, row in zip(filled(x), x, strict=True):
        total = total * 0.5 + h * row
    return total


def subscripted(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for i in range(len(states)):
        total = total * 0.5 + states[i] - states[len(states) - 1 - i]
    return total, torch.stack(states)


def backwards(x: torch.Tensor) -> Any:
    total = x[0] * 0
    for h in filled(x)[::-1]:
        total = total * 0.5 + h
    return total


def turned(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    states.reverse()
    for h in states:
        total = total * 0.5 + h
    return total, states[0]


def begun_with_one(x: torch.Tensor) -> Any:
    states = [x[0] * 3]
    for row in x:
        states.append(torch.sin(row))
    total = x[0] * 0
    for h in states:
        total = total * 0.5 + h
    return total, torch.stack(states)


def filled_again(x: torch.Tensor) -> Any:
    others = []
    for h in filled(x):
        others.append(h * 2 + 1)
    total = x[0] * 0
    for other in others:
        total = total * 0.5 + other
    return total, torch.stack(others)


def until(x: torch.Tensor) -> Any:
    total, steps = x[0] * 0, 0
    for h in filled(x):
        total = total + h
        steps += 1
        if total.sum() > 3:
            break
    return total, steps


def where_larger(x: torch.Tensor) -> Any:
    total = x[0] * 0
    for h in filled(x):
        if h.sum() > 0:
            total = total + h
        else:
            total = total - 1
    return total


def last_of_them(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for h in states:
        total = total + h
    return total, h, h is states[-1]


def twice(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for left in states:
        for right in states:
            total = total * 0.9 + left * right
    return total


def passed_on(x: torch.Tensor) -> Any:
    def weighed(states: list[torch.Tensor], weight: float) -> torch.Tensor:
        total = states[0] * 0
        for h in states:
            total = total * weight + h
        return total

    states = filled(x)
    return weighed(states, 0.5) + weighed(states, 0.25)


KEPT = (
    summed,
    recurrent,
    numbered,
    beside_rows,
    subscripted,
    backwards,
    turned,
    begun_with_one,
    filled_again,
    until,
    where_larger,
    last_of_them,
    twice,
    passed_on,
)


@pytest.mark.parametrize("program", KEPT)
def test_one_graph_for_all_lengths(program: Program) -> None:
    calls = [(torch.randn(n, 3),) for n in (6, 8, 5, 11, 7)]
    kept = regions_in(program, calls)
    assert len(kept[-1]) == 2, kept  # of one length, of any
    assert min(kept[-1]) >= 2, kept


@pytest.mark.parametrize("program", KEPT)
def test_short_lists(program: Program) -> None:
    regions_in(program, [(torch.randn(n, 3),) for n in (1, 2, 3, 4, 1)])


@pytest.mark.parametrize("program", [p for p in KEPT if p is not last_of_them])
def test_gradients_are_eagers(program: Program, compiled_regions: list[int]) -> None:
    def make(length: int) -> Sequence[torch.Tensor]:
        return (torch.randn(length, 3, dtype=torch.float64, requires_grad=True),)

    def tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: list[torch.Tensor] = []
        results = program(x)
        for result in results if isinstance(results, tuple) else (results,):
            found += result if isinstance(result, list) else [torch.as_tensor(result)]
        return tuple(found)

    check(tensors, make, lengths=(17, 20, 18, 1))


def kept_by_data(x: torch.Tensor) -> Any:
    states = filled(x)
    best = states[0]
    for h in states:
        if h.sum() > best.sum():
            best = h
    return best, torch.stack(states)


def written(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for h in states:
        h.mul_(2)
        total = total + h
    return total, torch.stack(states)


def written_later(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for h in states:
        total = total + h
    states[0].add_(1)
    return total, torch.stack(states)


def shared_and_written(x: torch.Tensor) -> Any:
    h, states = x[0] * 0, []
    for row in x:
        h = torch.tanh(row + h)
        states.append(h)
    h.add_(1)
    total = x[0] * 0
    for state in states:
        total = total * 0.5 + state
    return total


def first_written(x: torch.Tensor) -> Any:
    states = [x[0] * 3]
    for row in x:
        states.append(torch.sin(row))
    states[0].add_(1)
    total = x[0] * 0
    for h in states:
        total = total * 0.5 + h
    return total, torch.stack(states)


def put_into_another(x: torch.Tensor) -> Any:
    states, others = filled(x), []
    for h in states:
        others.append(h)
    return torch.stack(states), torch.stack(others), others[2] is states[2] if len(x) > 2 else None


def row_written_before(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    states[-1].add_(1)
    for h in states:
        total = total * 0.5 + h
    return total, torch.stack(states)


def longer_meanwhile(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for h in states:
        total = total + h
        states.append(h * 2)
        if total.abs().sum() > 2:
            break
        if len(states) > 60:
            break
    return total, len(states)


def changed_meanwhile(x: torch.Tensor) -> Any:
    states, total = filled(x), x[0] * 0
    for i, h in enumerate(states):
        total = total + h
        states[i] = total
    return total, torch.stack(states)


def view_kept(x: torch.Tensor) -> Any:
    states = filled(x)
    part = states[0][:2]
    for h in states:
        part = h[1:]
    return part, torch.stack(states)


@pytest.mark.parametrize(
    "program",
    [
        kept_by_data,
        written,
        written_later,
        shared_and_written,
        first_written,
        put_into_another,
        row_written_before,
        longer_meanwhile,
        changed_meanwhile,
        view_kept,
    ],
)
def test_what_shows_that_rows_are_no_elements(program: Program) -> None:
    """Identities and writes are eager's, kept or not."""
    regions_in(program, [(torch.randn(n, 3),) for n in (6, 8, 5, 1)])


def behind_another(x: torch.Tensor) -> Any:
    states = [x]
    for _ in range(25):
        for row in x:
            states.append(row * 2)
    return len(states), states


def by_steps(x: torch.Tensor) -> Any:
    states = [x[0] * 3, x[0] + 1]
    for i in range(0, 50, 2):
        states.append(x[0] * i)
        states.append(x[0] - i)
    return len(states), states


def in_pairs(x: torch.Tensor) -> Any:
    states = [(x, 1)]
    for i in range(25):
        states.append((x[0] * i, 2))
        states.append((x * i, 3))
    return len(states), states


@pytest.mark.parametrize("program", [behind_another, by_steps, in_pairs])
@pytest.mark.parametrize("length", [1, 3])
def test_several_elements_an_iteration(program: Program, length: int) -> None:
    x = torch.randn(length, 2)
    expected, found = program(x), weft.compile(program, dynamic=False)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
