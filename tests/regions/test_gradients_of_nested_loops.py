"""Gradients through loops without a bound that are inside branches and other loops, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from .test_gradients import check
from .test_gradients import compiled_regions as compiled_regions


def _damped_for_a_while(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, n = x[0], 0
    while h.norm() > 0.5 and n < 3:
        h = h * 0.6 + 0.01 * (h @ w)
        n += 1
    return h * (n + 2)


def _damped_in_each_row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h = h + x[t]
        while h.abs().max() > 1:
            h = h * 0.7 + 0.01 * torch.sin(h @ w)
    return h


def _damped_where_large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0]
    if h.sum() > 0:
        while h.norm() > 0.5:
            h = h * 0.7 + 0.01 * torch.sin(h @ w)
    return h * 2


def _damped_until_few_are_left(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0] + 1
    while h.norm() < 50:
        g = h
        while g.norm() > 0.5:
            g = g * 0.7 + 0.01 * torch.sin(g @ w)
        h = h * 3 + g
    return h


@pytest.mark.parametrize(
    "program",
    [_damped_for_a_while, _damped_in_each_row, _damped_where_large, _damped_until_few_are_left],
)
def test_a_loop_without_a_bound_inside_a_region(
    program: Callable[..., Any], compiled_regions: list[int]
) -> None:
    """Its backward reads how many iterations ran inside the region: their memory is given there."""

    def make(seed: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(18, 2, 3, dtype=torch.float64) * (seed > 0)  # no iteration at first
        return x.requires_grad_(), torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    check(program, make, lengths=range(4))
    assert compiled_regions == [1]
