"""Gradients of some results of graphs with regions and sizes that vary: backward runs by operators there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft
from torch import Tensor


def branch(x: Tensor, flag: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    total, h = x.exp().sum(), x * 2
    if flag.any():
        h = h.sin() * scale + h.shape[0]
    return total, h.cos()


def loop(x: Tensor, flag: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    total, h = x.exp().sum(), x * 2
    while flag.sum() > 0:
        h = h.sin() * scale + h.shape[0]
        flag = flag.logical_and(h.sum() > 1e9)
    return total, h.cos()


@pytest.mark.parametrize("program", [branch, loop])
def test_gradients_of_some_results_of_a_region_that_takes_floats(program: Any) -> None:
    compiled = weft.compile(program, dynamic=True, fullgraph=True)
    flag = torch.tensor([True, False])
    for size, scale in ((3, 0.5), (5, 0.7), (4, -1.5)):
        x = torch.linspace(-1, 1, size, dtype=torch.float64).requires_grad_()
        for asked in ([0], [1], [0, 1]):
            found, wanted = (
                torch.autograd.grad([f(x, flag, scale)[k].sum() for k in asked], x)
                for f in (compiled, program)
            )
            torch.testing.assert_close(found, wanted)
