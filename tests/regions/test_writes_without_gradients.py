"""Regions that write with gradients disabled, or through detached views: data changes, histories stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

from tests.regions.test_gradients import check, compiled_regions

__all__ = ["compiled_regions"]


def running_average(x: Tensor, w: Tensor) -> Any:
    h, mean = w * 1, torch.zeros_like(w)
    for t in range(x.shape[0]):
        h = torch.tanh(h * x[t] + mean)
        with torch.no_grad():
            mean.mul_(0.9).add_(h, alpha=0.1)
    return h, mean


def bounded_state(x: Tensor, w: Tensor) -> Tensor:
    h = w * 1
    for t in range(x.shape[0]):
        h = h * x[t] + w
        with torch.no_grad():
            h.clamp_(-1, 1)
    return h * 2


def detached_state(x: Tensor, w: Tensor) -> Tensor:
    h = w * 1
    for t in range(x.shape[0]):
        h = h + x[t]
        h.detach().mul_(0.5)
    return h * 2


def counted_signs(x: Tensor, w: Tensor) -> Any:
    counts = torch.zeros(3, dtype=x.dtype)
    h = w
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        with torch.no_grad():
            counts += h > 0
            counts[0] = t
    return h * counts


def scaled_on_a_side(x: Tensor, w: Tensor) -> Tensor:
    h = w * x[0]
    if x.sum() > 0:
        h = h.sin()
        with torch.no_grad():
            h.mul_(3)
    else:
        h = h.cos()
        h.detach().add_(1)
    return h * 2


def disabled_and_enabled(x: Tensor, w: Tensor) -> Tensor:
    h = w * 1
    for t in range(x.shape[0]):
        with torch.no_grad():
            scale = h.abs().mean() + 1
            with torch.enable_grad():
                h = h * x[t]
        h = h / scale + w
    return h


def logical_state(x: Tensor, w: Tensor) -> Tensor:
    h = w * 1
    for t in range(x.shape[0]):
        h = h * x[t] + w
        h.logical_xor_(w)
    return h * 2


def logical_on_a_side(x: Tensor, w: Tensor) -> Tensor:
    h = w * x[0]
    if x.sum() > 0:
        h[1:].logical_not_()
    else:
        h.logical_and_(x[-1])
    return h * 2


PROGRAMS = [
    running_average,
    bounded_state,
    detached_state,
    counted_signs,
    scaled_on_a_side,
    disabled_and_enabled,
    logical_state,
    logical_on_a_side,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_gradients_pass_by(program: Callable[..., Any], compiled_regions: list[int]) -> None:
    def make(seed: int) -> Any:
        x = torch.randn(20, 3, dtype=torch.float64)
        w = torch.randn(3, dtype=torch.float64)
        return x.requires_grad_(), w.requires_grad_()

    check(program, make, lengths=(1, 2, 3))
    assert compiled_regions == [1]


def test_a_parameter_that_a_loop_writes(compiled_regions: list[int]) -> None:
    """A leaf may be written so; its gradient is that of what is read, before and after."""

    def decayed(x: Tensor, weight: Tensor) -> Tensor:
        total = (weight * 2).sum()
        for t in range(x.shape[0]):
            with torch.no_grad():
                weight.mul_(0.9)
            total = total + x[t].sum() * 2
        return total + (weight * x[0]).sum()

    found = []
    for program in (decayed, weft.compile(decayed)):
        torch.manual_seed(0)
        x = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
        result = program(x, weight)
        result.backward()
        found.append((result, weight, x.grad, weight.grad))
    torch.testing.assert_close(found[1], found[0])
    assert compiled_regions == [1]
