"""Branches and loops that write to an input, where inputs share memory: the graph runs as written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft

T = torch.Tensor


def branch(x: T, y: T, s: float) -> Any:
    if x.sum() > 0:
        s = s * 2
        y = y + s
    else:
        y[:2].add_(s)
    return x * 2, y, s


def nested(x: T, y: T, s: float) -> Any:
    if x.sum() > 0:
        if y.max() > 1:
            y.mul_(0.5)
        x = x + s
    return x, y


def loop(x: T, y: T, s: float) -> Any:
    while y.sum() < 40:
        y.add_(x.abs() + s)
    return x + 1, y


def turns(x: T, y: T, s: float) -> Any:
    for i in range(24):
        y.mul_(0.9).add_(x[i % 3] * s)
    return x.clone(), y


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [branch, nested, loop, turns])
def test_it_is_as_in_eager(program: Any, dynamic: bool) -> None:
    compiled = weft.compile(program, dynamic=dynamic)
    for sign, shift in ((1.0, None), (1.0, 0), (-1.0, 0), (1.0, 2), (-1.0, None)):
        outcomes = []
        for function in (program, compiled):
            memory = torch.linspace(0.1, 1, 8) * sign
            x = memory[:4]
            y = torch.linspace(-1, 2, 4) if shift is None else memory[shift : shift + 4]
            outcomes.append((function(x, y, 0.75), memory))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-5, atol=1e-6)
