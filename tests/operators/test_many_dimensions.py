"""Tensors with more dimensions than torch has names for (64), given, made and written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def computed_with(x: torch.Tensor) -> Any:
    return x * 2 + 1, x.sum(), x.flatten()


def written_to(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x[0], x.sin()


def made_inside(x: torch.Tensor) -> Any:
    for _ in range(5):
        x.unsqueeze_(0)
    return x.exp(), x.dim()


def behind_a_break(x: torch.Tensor) -> Any:
    y = x.unsqueeze(0) * 2
    if float(y.sum()) > 0:
        return y + 1, y
    return y - 1, y


@pytest.mark.parametrize("dimensions", [62, 64, 65, 70])
@pytest.mark.parametrize("program", [computed_with, written_to, made_inside, behind_a_break])
def test_many_dimensions(program: Callable[[torch.Tensor], Any], dimensions: int) -> None:
    results = []
    for run in (program, weft.compile(program)):
        x = torch.tensor([0.5, -1.5, 2.0]).view(*[1] * (dimensions - 1), 3)
        results.append([*run(x), x])
    for mine, wanted in zip(*results, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert mine.shape == wanted.shape
            torch.testing.assert_close(mine.flatten(), wanted.flatten())
        else:
            assert mine == wanted
