"""Kept loops whose iterations end in several places: ``continue``, and ``break`` inside a branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor


def skipping(x: Tensor) -> tuple[Tensor, int]:
    i, total, skipped = 0, x.new_zeros(()), 0
    while i < x.shape[0]:
        value = x[i]
        i += 1
        if value < 0:
            skipped += 1
            continue
        if value > 1:
            total = total * 0.5
            continue
        total = total + value
    return total, skipped


def rejecting_steps(x: Tensor) -> tuple[Tensor, int]:
    time, step, accepted = 0.0, 0.25, 0
    while time < 1.0:
        change = step * x.sin()
        error = change.abs().max().item()
        if error > 0.1:
            step = step * 0.5
            continue
        x = x - change
        time += step
        accepted += 1
    return x, accepted


def skipping_by_two_tests(x: Tensor) -> tuple[Tensor, Tensor]:
    total, count = x.sum() * 0, torch.zeros((), dtype=torch.int64)
    while total < 3 and count < 20:
        count = count + 1
        if x[count % len(x)] < 0:
            continue
        total = total + x[count % len(x)]
    return total, count


def stopping_in_a_branch(x: Tensor) -> tuple[Tensor, Tensor]:
    best, step = x.square().sum(), torch.ones(())
    for _ in range(40):
        changed = x - step * x
        value = changed.square().sum()
        if value < best:
            is_done = best - value < 1e-3
            x, best = changed, value
            if is_done:
                break
        else:
            step = step * 0.5
    return x, step


def returning_in_a_branch(x: Tensor) -> Tensor:
    for k in range(40):
        x = x * 0.7
        if x.sum() > 0:
            if x.abs().max() < 0.1:
                return x + k
            x = x - 0.01
        else:
            x = x + 0.02
    return -x


def skipping_an_inner_loop(x: Tensor) -> Tensor:
    total = x.sum() * 0
    for row in x.expand(40, -1):
        if total > row.sum():
            total = total * 0.5
            continue
        for k in range(3):
            if row[k] > 0:
                total = total + row[k]
    return total


PROGRAMS = (
    skipping,
    rejecting_steps,
    skipping_by_two_tests,
    stopping_in_a_branch,
    returning_in_a_branch,
    skipping_an_inner_loop,
)


def check_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)
    tensors = [v for v in (want if isinstance(want, tuple) else (want,)) if isinstance(v, Tensor)]
    found = [v for v in (got if isinstance(got, tuple) else (got,)) if isinstance(v, Tensor)]
    assert [t.stride() for t in found] == [t.stride() for t in tensors]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for seed, count in ((0, 32), (1, 32), (2, 41)):
        x = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        check_same(compiled(x.clone()), program(x.clone()))


@pytest.mark.parametrize(
    "program",
    [skipping, stopping_in_a_branch, returning_in_a_branch],
    ids=lambda p: p.__name__,
)
def test_gradients_are_as_in_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program)
    for seed in range(2):
        found = []
        for each in (compiled, program):
            x = torch.randn(36, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            result = each(x)
            result = result[0] if isinstance(result, tuple) else result
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(*found)
