"""Sizes that vary from call to call, asked of tensors that are made within a branch or a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from .test_loop_lengths import Counting


def rows_of_a_side(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.sum() > 0:
        for row in y[1:]:
            x = x + row
    return x


def numbers_of_a_side(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.sum() > 0:
        tail = y[1:]
        pairs = torch.cat([tail, tail]).flatten()
        x = x * len(tail) + pairs.numel() // tail.stride(0) - torch.numel(tail[::2])
    return x * y.shape[0]


def numbers_of_an_iteration(x: torch.Tensor, y: torch.Tensor) -> Any:
    for i in range(20):
        tail = y[2:]
        x = x * 0.5 + tail.shape[0] * i + tail.t().size(-1)
    return x


def means(x: torch.Tensor, y: torch.Tensor) -> Any:
    while x.sum() < 100:
        window = y[: len(y) // 2]
        x = x.abs() + 1 + window.sum(0) / len(window)
    return x


def sizes_on_both_sides(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.sum() > 0:
        x = x + len(torch.cat([y, y]))
    else:
        x = x - len(torch.cat([y, y])) * len(y[1:])
    return x, 2 * len(y)


@pytest.mark.parametrize(
    "function",
    [rows_of_a_side, numbers_of_a_side, numbers_of_an_iteration, means, sizes_on_both_sides],
    ids=lambda f: f.__name__,
)
def test_sizes_of_tensors_made_in_a_region(function: Callable[..., Any]) -> None:
    backend = Counting()
    compiled = capture(function, backend=backend)
    for rows in (5, 7, 4, 30):
        y = torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows))
        for x in (y[0].clone(), -y[0]):
            torch.testing.assert_close(compiled(x, y).result, function(x, y))
    kept = {"cond", "while_loop"}
    assert [bool(kept & {str(n.target) for n in g.graph.nodes}) for g in backend.graphs] == [
        True
    ] * 2
