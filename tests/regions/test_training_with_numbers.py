"""Training programs that read numbers of tensors and compute with them: one graph, eager's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from .test_gradients import _run
from .test_gradients import compiled_regions as compiled_regions


def _scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Backward needs the number: it reads the tensor again."""
    size = w.detach().abs().mean().item()
    return torch.add(x.sin(), w * x, alpha=size) * size


def _by_side(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = x.sum().item()
    if total > 0:
        y = torch.add(x, w, alpha=total)
    else:
        y = x.clamp(max=total * -0.1) * w
    return y * total


def _in_a_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    size, h = x.abs().max().item(), x
    for _ in range(20):
        h = torch.sin(torch.add(h * w, x, alpha=size)) * size
    return h


@pytest.mark.parametrize("special", [None, float("nan"), -float("inf")])
@pytest.mark.parametrize(("program", "regions"), [(_scaled, 0), (_by_side, 1), (_in_a_loop, 1)])
def test_numbers_of_data(
    program: Callable[..., Any],
    regions: int,
    special: float | None,
    compiled_regions: list[int],
) -> None:
    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        x = torch.randn(5, dtype=torch.float64)
        if special is not None:
            x[2] = special
        return x.requires_grad_(), torch.rand(5, dtype=torch.float64, requires_grad=True)

    compiled = weft.compile(program)
    for seed in range(3):
        expected, actual = _run(program, make(seed), ()), _run(compiled, make(seed), ())
        torch.testing.assert_close(actual, expected, equal_nan=True)
    assert compiled_regions == [regions]
