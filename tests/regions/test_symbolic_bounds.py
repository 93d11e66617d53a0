"""Ranges whose start, stop and step change between calls: one compilation for all that have iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from .iterative_programs import written
from .test_loop_lengths import Counting

Calls = list[tuple[int, int, int]]

STARTS: Calls = [(3, 20, 1), (4, 27, 1), (5, 12, 1), (0, 100, 1), (7, 9, 1), (2, 3, 1)]
STEPS: Calls = [(3, 20, 1), (4, 22, 2), (5, 27, 3), (2, 100, 7), (7, 9, 4), (1, 101, 1)]
BACKWARDS: Calls = [(30, 2, -1), (40, 5, -2), (50, 7, -3), (99, -1, -7), (7, 5, -4), (99, -1, -1)]


def accumulated(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    total = x[0] * 0
    for i in range(start, stop, step):
        total = total + torch.sin(x[1] * i)
    return total


def read(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(start, stop, step):
        total = torch.tanh(total + x[i])
    return total


def until(x: torch.Tensor, start: int, stop: int, step: int) -> Any:
    total = torch.zeros(4)
    for i in range(start, stop, step):
        total = total + x[i]
        if total.sum() > 20:
            break
    return total


def check(function: Callable[..., Any], calls: list[tuple[int, ...]]) -> list[bool]:
    """Each call has eager's results and effects; which of the graphs that were compiled have a loop."""
    backend = Counting()
    compiled = capture(function, backend=backend)
    for numbers in calls:
        theirs = torch.rand(120, 4, generator=torch.Generator().manual_seed(len(numbers)))
        mine = theirs.clone()
        with torch.no_grad():
            wanted, got = function(theirs, *numbers), compiled(mine, *numbers).result
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(mine, theirs)
    return ["while_loop" in {str(node.target) for node in g.graph.nodes} for g in backend.graphs]


@pytest.mark.parametrize("calls", [STARTS, STEPS, BACKWARDS], ids=["starts", "steps", "backwards"])
@pytest.mark.parametrize("function", [accumulated, read, written, until], ids=lambda f: f.__name__)
def test_starts_stops_and_steps_that_are_passed(function: Callable[..., Any], calls: Calls) -> None:
    assert check(function, calls) == [True, True]


def test_a_range_that_is_empty() -> None:
    """It is a graph of its own: what is bound in a loop is unbound after none of its iterations."""
    calls = [*STARTS, (5, 5, 1), (9, 9, 1), (4, 40, 1), (7, 2, 1)]
    assert check(accumulated, calls) == [True, True, False]


def test_steps_of_either_sign_and_of_none() -> None:
    compiled = capture(accumulated, backend=Counting())
    x = torch.rand(2, 4)
    for numbers in ((0, 9, 1), (9, 1, -2), (0, 20, 3), (20, 0, -3)):
        torch.testing.assert_close(compiled(x, *numbers).result, accumulated(x, *numbers))
    with pytest.raises(ValueError, match="arg 3 must not be zero"):
        compiled(x, 0, 20, 0)


def backwards(x: torch.Tensor, n: int) -> torch.Tensor:
    out, running = torch.zeros(n), torch.zeros(())
    for t in reversed(range(n)):
        running = x[t, 0] + 0.9 * running
        out[t] = running
    return out


def backwards_by_step(x: torch.Tensor, n: int) -> torch.Tensor:
    found, running = [], torch.zeros(())
    for t in range(n - 1, -1, -1):
        running = x[t, 0] + 0.9 * running
        found.append(running)
    return torch.stack(found)


def appended_from_a_third(x: torch.Tensor, n: int) -> torch.Tensor:
    found = []
    for t in range(n // 3, n):
        found.append(x[t] * t)
    return torch.stack(found)


def zipped(x: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros(4)
    for i, a, b in zip(range(2, n + 2), x, x[1:n], strict=False):
        total = total + a * b * i
    return total


def numbered(x: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros(4)
    for k, i in enumerate(range(3, n)):
        total = total + x[i] * x[k] * (n - i)
    return total


def from_both_ends(x: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(n):
        total = total + x[n - 1 - i] * i - x[i] * n
    return total


@pytest.mark.parametrize(
    "function",
    [backwards, backwards_by_step, appended_from_a_third, zipped, numbered, from_both_ends],
    ids=lambda f: f.__name__,
)
def test_bounds_that_are_computed(function: Callable[..., Any]) -> None:
    assert check(function, [(20,), (25,), (31,), (9,), (100,)])[1:] == [True]


def test_positions_outside() -> None:
    """Where a start would read outside, the call runs as written: eager's error."""
    compiled = capture(read, backend=Counting())
    x = torch.rand(30, 4)
    for start, stop in ((0, 20), (2, 25), (5, 30)):
        torch.testing.assert_close(compiled(x, start, stop, 1).result, read(x, start, stop, 1))
    for start, stop in ((3, 31), (-40, 3)):
        with pytest.raises(IndexError, match="out of"):
            compiled(x, start, stop, 1)
    torch.testing.assert_close(compiled(x, -3, 4, 1).result, read(x, -3, 4, 1))
