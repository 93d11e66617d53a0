"""Branches and loops with complex results, or that keep complex values for backward: values as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return torch.complex(x, x * 2)
    return torch.complex(x * 2, x)


def branch_that_keeps(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return torch.complex(x, x * 2).abs()
    return x * 2


def transformed(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return torch.fft.fft(x).abs()
    return x * 2


def loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        row = torch.fft.fft(x).abs()
    return row.prod(1)


def carried(x: torch.Tensor) -> torch.Tensor:
    y = torch.complex(x, x)
    for _ in range(25):
        y = y * 0.5 + 1
    return y.real


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", [branch, branch_that_keeps, transformed, loop, carried])
def test_like_eager(program: Callable[[torch.Tensor], torch.Tensor], gradients: bool) -> None:
    weft.reset()
    outcomes = []
    for run in (program, weft.compile(program)):
        x = torch.linspace(0.5, 1.5, 8).reshape(2, 4).requires_grad_(gradients)
        result = run(x)
        outcomes.append([result.detach()])
        if gradients:
            result.abs().sum().backward()
            outcomes[-1].append(x.grad)
    torch.testing.assert_close(*outcomes)
