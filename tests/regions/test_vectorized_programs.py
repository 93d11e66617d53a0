"""Python loops of changing lengths that become kernels over all iterations, or with the loop inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def activations(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], 4)
    for i in range(x.shape[0]):
        out[i] = torch.relu(x[i] * w[0]) + i
    return out


def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(x.shape[0]):
        x[i] = torch.softmax(x[i] - x[i].mean(), -1)
    return x + w[0]


def table_of_pairs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            out[i, j] = (x[i] * x[j]).sum()
    return out


def recurrences(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        h = w[0] * 0
        for j in range(12):
            h = h * 0.5 + x[i] * j
        out[i] = h
    return out


def trajectory(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, kept = w * 1, torch.empty(x.shape[0], 4, 4)
    for i in range(x.shape[0]):
        h = h - 0.01 * h * h * x[i]
        kept[i] = h
    return kept, h


def of_the_row_before(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(1, x.shape[0]):
        x[i] = torch.minimum(x[i], x[i - 1] + w[1])
    return x


def scaled_by_number(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(x.shape[0]):
        x = x * (1 - i / 100) + w[0]
    return x


def recurrent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = w[:1] * 0, torch.zeros(x.shape[0], 4)
    for i in range(x.shape[0]):
        h = torch.tanh(x[i : i + 1] @ w + h @ w)
        out[i] = h[0]
    return out


PROGRAMS = (
    *(activations, normalized, table_of_pairs, recurrences, trajectory),
    *(of_the_row_before, scaled_by_number, recurrent),
)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_loops_of_changing_lengths(function: Callable[..., Any]) -> None:
    compiled = weft.compile(function)
    for n in (9, 20, 17):
        x, w = torch.rand(n, 4), torch.rand(4, 4)
        mine = x.clone()
        with torch.no_grad():
            wanted, got = function(x, w), compiled(mine, w)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(mine, x)
