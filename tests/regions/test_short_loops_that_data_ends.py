"""Loops of few iterations, over numbers or layers, that a tensor's value ends: one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

torch.manual_seed(0)
LAYERS = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)).double()
HEAD = nn.Linear(4, 3).double()
HEADS = {name: nn.Linear(4, 3).double() for name in "abc"}

Program = Callable[[Tensor, Tensor], Any]


def line_search(x: Tensor, limit: Tensor) -> Any:
    step, start = 1.0, x.square().sum()
    for _ in range(8):
        if (x * (1 - step * 3)).square().sum() < start * limit:
            break
        step *= 0.5
    return x - step * x


def early_exit(x: Tensor, limit: Tensor) -> Any:
    for number, layer in enumerate(LAYERS):
        x = layer(x).tanh()
        scores = HEAD(x).softmax(-1)
        if scores.max() > limit:
            return scores, number
    return scores, len(LAYERS)


def first_head(x: Tensor, limit: Tensor) -> Any:
    for head, scale in zip(HEADS.values(), (1.0, 2.0, 3.0), strict=True):
        y = head(x) * scale
        if y.max() > limit * 3:
            break
    else:
        y = y * 0
    return y.exp()


def backwards(x: Tensor, limit: Tensor) -> Any:
    total = x * 0
    for layer in reversed([*LAYERS]):
        total = total + layer(x)
        if total.max() > limit:
            total = total - 1
            break
    return total


def inside_another(x: Tensor, limit: Tensor) -> Any:
    for scale in (1.0, 2.0):
        for layer in LAYERS:
            x = layer(x) * scale
            if x.max() > limit:
                break
        x = x + 1
    return x


PROGRAMS: tuple[Program, ...] = (line_search, early_exit, first_head, backwards, inside_another)


# What is left shows how far the loop came.


def iterator_used_behind(x: Tensor, limit: Tensor) -> Any:
    layers = iter(LAYERS)
    for layer in layers:
        x = layer(x)
        if x.max() > limit:
            break
    return x, len(list(layers))


def collected(x: Tensor, limit: Tensor) -> Any:
    found = []
    for layer in LAYERS:
        x = layer(x)
        found.append(x)
        if x.max() > limit:
            break
    return torch.stack(found)


def outcome(program: Program, limit: float) -> list[Any]:
    x = torch.linspace(-1, 1.5, 4, dtype=torch.float64).requires_grad_()
    results = program(x * 1, torch.tensor(limit, dtype=torch.float64))
    results = results if isinstance(results, tuple) else (results,)
    LAYERS.zero_grad()
    results[0].square().sum().backward()
    gradients = [p.grad for p in LAYERS.parameters()]
    return [results[0].detach(), *results[1:], x.grad, *gradients]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for mine, its in zip(found, expected, strict=True):
        if isinstance(its, Tensor):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-11)
        else:
            assert mine == its and type(mine) is type(its)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Program) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for limit in (-9.0, 0.1, 0.4, 0.5, 0.6, 9.0):
        assert_same(outcome(compiled, limit), outcome(program, limit))


@pytest.mark.parametrize("program", [iterator_used_behind, collected])
def test_what_may_break(program: Program) -> None:
    compiled = weft.compile(program)
    for limit in (-9.0, 0.4, 9.0):
        assert_same(outcome(compiled, limit), outcome(program, limit))
