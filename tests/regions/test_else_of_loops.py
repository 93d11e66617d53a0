"""``for ... else`` that data leaves by ``break``, alone and in other loops: kept whole, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft

from .regions_kept import regions_in
from .test_gradients import check
from .test_gradients import compiled_regions as compiled_regions


def alone(x: torch.Tensor) -> Any:
    h = x[0] * 0
    for row in x:
        h = h + row
        if h.sum() > 3:
            h = h * 2
            break
    else:
        h = h - 1
    h = torch.tanh(h)
    return h, h.sum()


def in_a_loop(x: torch.Tensor) -> Any:
    h, ended = x[0] * 0, 0
    for row in x:
        for i in range(x.shape[0]):
            h = h + row * x[i]
            if h.norm() > 2:
                break
        else:
            h, ended = h * 0.5, ended + 1
        h = torch.sin(h)
    return h, ended


def at_the_end_of_a_loop(x: torch.Tensor) -> Any:
    h, ended = x[0] * 0, 0
    for row in x:
        for i in range(x.shape[0]):
            h = h + row * x[i]
            if h.norm() > 2:
                h = h * 0.25
                break
        else:
            ended += 1
    return h + 1, ended


def leaving_both(x: torch.Tensor) -> Any:
    h, steps = x[0] * 0, 0
    for row in x:
        for i in range(x.shape[0]):
            h = h + row * x[i] * 0.3
            steps += 1
            if h.norm() > 2:
                break
        else:
            continue
        break
    return h + 1, steps


def leaving_the_outer_from_else(x: torch.Tensor) -> Any:
    h = x[0] * 0
    for row in x:
        for i in range(x.shape[0]):
            h = h + row * x[i]
            if h.max() > 1:
                h = h * 0.5
                break
        else:
            h = h - 1
            break
        h = h + 0.125
    return h * 2


def both_with_else(x: torch.Tensor) -> Any:
    h, last = x[0] * 0, 0
    for row in x:
        h = h + row
        for i in range(x.shape[0]):
            h = h * 0.9 + x[i]
            if h.sum() > 4:
                break
        else:
            last += 1
        if h.sum() < -6:
            break
    else:
        last += 100
    return h + 1, last


def in_a_while(x: torch.Tensor) -> Any:
    h, steps = x[0] * 1, 0
    while h.norm() < 6 and steps < 5:
        for row in x:
            h = h * 1.1 + row * 0.1
            if h.max() > 2:
                break
        else:
            h = h * 1.5
        steps += 1
    return h + 1, steps


def two_breaks(x: torch.Tensor) -> Any:
    h = x[0] * 0
    for row in x:
        for i in range(x.shape[0]):
            h = h + x[i]
            if h.sum() > 5:
                break
            h = h * row
            if h.sum() < -5:
                h = h + 1
                break
        else:
            h = h * 0.5
    return h + 1


def on_a_side(x: torch.Tensor) -> Any:
    h = x[0] * 1
    for row in x:
        if row.sum() > 0:
            for i in range(x.shape[0]):
                h = h * 0.5 + x[i]
                if h.min() < -1:
                    break
            else:
                h = h + 2
        h = h * 0.5
    return h


def with_return(x: torch.Tensor) -> Any:
    h = x[0] * 0
    for row in x:
        h = h + row
        if h.sum() > 3:
            break
        if h.sum() < -3:
            return h * 2
    else:
        h = h - 1
    return h + 1


def written(x: torch.Tensor) -> Any:
    found = torch.zeros(x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            if (x[i] * x[j]).sum() > 1.5:
                found[i] = j
                break
        else:
            found[i] = -1
            x[i] = 0
    return found


PROGRAMS = (
    alone,
    in_a_loop,
    at_the_end_of_a_loop,
    leaving_both,
    leaving_the_outer_from_else,
    both_with_else,
    in_a_while,
    two_breaks,
    on_a_side,
    written,
    with_return,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_writes_are_eagers(program: Callable[..., Any]) -> None:
    """One graph for the first length; shorter loops than the option says are unrolled, with breaks."""
    calls = [torch.randn(6, 3) * scale for scale in (1.0, 0.1, 3.0, 30.0, 0.5)]
    calls += [torch.ones(6, 3), -torch.ones(6, 3), torch.randn(9, 3), torch.randn(4, 3)]
    kept = regions_in(program, [(x,) for x in calls])
    assert len(kept[0]) == 1, kept
    assert all(len(graphs) <= 2 for graphs in kept), kept
    assert all(graphs[0] > 0 for graphs in kept), kept


@pytest.mark.parametrize("program", PROGRAMS[:-2])
def test_gradients_are_eagers(program: Callable[..., Any], compiled_regions: list[int]) -> None:
    def make(seed: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(seed)
        return ((torch.randn(17, 3, dtype=torch.float64) * 0.5**seed).requires_grad_(),)

    def tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = program(x)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(torch.as_tensor(result) for result in results)

    check(tensors, make, lengths=range(4))


@pytest.mark.parametrize("program", PROGRAMS)
def test_short_loops(program: Callable[..., Any]) -> None:
    """Of one row, or of a few that are unrolled."""
    regions_in(program, [(torch.randn(n, 3),) for n in (1, 2, 3)])


def of_any_length(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        for j in range(n):
            x = x * 0.9 + j
            if x.sum() > 20:
                break
        else:
            x = x - i
    else:
        x = x + 0.5
    return x


def test_lengths_that_vary_and_nan() -> None:
    compiled = weft.compile(of_any_length)
    for n in (20, 17, 0, 1, 2, 25):
        for scale in (1.0, 40.0, float("nan"), float("inf")):
            x = torch.rand(3, dtype=torch.float64) * scale
            torch.testing.assert_close(compiled(x, n), of_any_length(x, n), equal_nan=True)
