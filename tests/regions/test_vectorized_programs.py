"""Python loops of changing lengths that become kernels over all iterations, or with the loop inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_loop_ir import ExternCall, Loop, all_items

from tests.regions.test_rows_in_place import schedule_of

pytestmark = pytest.mark.native


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
    pytest.param(
        table_of_pairs, marks=pytest.mark.slow
    ),  # ``recurrences`` has a loop in a loop too
    *(activations, normalized, recurrences, trajectory),
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


# -- products of matrices that differ by iteration -------------------------------------------------------


def layers_of_each(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two layers for each row of matrices, with weights of their own."""
    out = torch.zeros(x.shape[0], x.shape[1], v.shape[2])
    for i in range(x.shape[0]):
        out[i] = torch.tanh(x[i] @ w[i]) @ v[i] + i
    return out


def layers_of_all(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same weights for all: rows below each other are one matrix."""
    out = torch.zeros(x.shape[0], x.shape[1], v.shape[2])
    for i in range(x.shape[0]):
        out[i] = torch.relu(x[i] @ w[0]) @ v[0]
    return out


def products_with_transposes(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], x.shape[1], x.shape[1])
    for i in range(x.shape[0]):
        out[i] = torch.softmax(x[i] @ x[i].t(), -1) * w[i, 0, 0]
    return out


def sums_with_products(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], x.shape[1], w.shape[2])
    for i in range(x.shape[0]):
        out[i] = torch.addmm(w[i, 0], x[i], w[i])
    return out


def every_second(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], x.shape[1], w.shape[2])
    for i in range(0, x.shape[0], 2):
        out[i] = x[x.shape[0] - 1] @ w[i]
    return out


def backwards(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Matrices from the last to the first: a batch has no negative stride."""
    out = torch.zeros(x.shape[0], x.shape[1], w.shape[2])
    for i in range(x.shape[0]):
        out[i] = x[i] @ w[x.shape[0] - 1 - i]
    return out


def of_the_matrix_before(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    h, out = x[0] * 1, torch.zeros(x.shape[0], x.shape[1], w.shape[2])
    for i in range(x.shape[0]):
        h = torch.tanh(h + x[i] @ w[i] @ v[i])
        out[i] = h @ w[i]
    return out


BATCHED = {
    layers_of_each: (0, {"bmm"}),
    layers_of_all: (0, {"mm"}),
    products_with_transposes: (0, {"bmm"}),
    sums_with_products: (0, {"baddbmm"}),
    every_second: (0, {"bmm"}),
    backwards: (1, {"mm"}),
    of_the_matrix_before: (1, {"bmm", "mm"}),
}
"""Programs, the loops that are left of them, and the products that are called."""


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("function", BATCHED, ids=lambda f: f.__name__)
def test_products_of_all_iterations(
    function: Callable[..., torch.Tensor], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (36, 48, 80), (36, 80, 72), (36, 72, 80)
    inputs = tuple(torch.randn(shape, generator=generator) * 0.1 for shape in shapes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        schedule = schedule_of(function, monkeypatch, *inputs)
    finally:
        torch.set_num_threads(before)
    items = list(all_items(schedule.steps))
    called = {str(i.operator).split(".")[1] for i in items if isinstance(i, ExternCall)}
    found = len([item for item in items if isinstance(item, Loop)]), called
    assert found == BATCHED[function]
