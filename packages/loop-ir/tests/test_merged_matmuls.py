"""Products of one matrix with several constants as one: results stay, strides included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)

T = torch.Tensor


def frozen(function: Callable[..., Any], weights: list[T], *inputs: T) -> tuple[int, int]:
    """How many products ``function(*weights, *inputs)`` has, and how many merged; results stay eager's."""
    with torch.no_grad():
        graph = make_fx(lambda *v: function(*v), tracing_mode="fake")(*weights, *inputs)
    before = sum(n.target in PRODUCTS for n in graph.graph.nodes)

    def merge(module: torch.fx.GraphModule, constants: Any) -> None:
        weft_loop_ir.merge_matmuls(module.graph, constants)
        module.recompile()

    result = weft_loop_ir.freeze(graph, dict(enumerate(weights)), merge)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(result))
    weft_loop_ir.verify(schedule)
    got = weft_loop_ir.evaluate(schedule, [*weights, *inputs])
    wanted = function(*weights, *inputs)
    for value, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        assert value.stride() == expected.stride()
    return before, sum(n.target in PRODUCTS for n in result.graph.nodes)


def attention(qw: T, kw: T, vw: T, qb: T, kb: T, vb: T, x: T) -> tuple[T]:
    projections = ((qw, qb), (kw, kb), (vw, vb))
    x = x.flatten(0, 1)
    q, k, v = (F.linear(x, w, b).view(2, 5, -1, 8).transpose(1, 2) for w, b in projections)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return ((q @ k.mT).softmax(-1) @ v,)


def weights(*columns: int) -> list[T]:
    return [torch.randn(n, 16) for n in columns] + [torch.randn(n) for n in columns]


@pytest.mark.parametrize("columns", [(32, 32, 32), (32, 16, 8)])
def test_projections_of_attention(columns: tuple[int, ...]) -> None:
    assert frozen(attention, weights(*columns), torch.randn(2, 5, 16)) == (3, 1)


def test_a_gate() -> None:
    def gated(gate: T, up: T, down: T, x: T) -> tuple[T]:
        return ((F.silu(x @ gate.t()) * (x @ up.t())) @ down.t(),)

    matrices = [torch.randn(32, 16), torch.randn(32, 16), torch.randn(16, 32)]
    assert frozen(gated, matrices, torch.randn(7, 16)) == (3, 2)


def test_results_of_the_graph_lie_as_before() -> None:
    def function(a: T, b: T, x: T) -> tuple[T, ...]:
        y, z = x @ a, x @ b
        return y, z.view(3, 2, 8), y.t(), z.sum(0), x.view(-1) * 2, (x @ b).reshape(-1)

    assert frozen(function, [torch.randn(16, 8), torch.randn(16, 8)], torch.randn(6, 16))[1] == 1


def test_weights_that_are_computed_late_are_moved() -> None:
    def function(a: T, b: T, x: T) -> tuple[T, ...]:
        y = (x @ a).relu()
        return y, x @ (b * 2).tanh()

    pair = [torch.randn(16, 8), torch.randn(16, 8)]
    assert frozen(function, pair, torch.randn(6, 16)) == (2, 1)


def test_split_parts() -> None:
    def function(a: T, b: T, x: T) -> tuple[T, ...]:
        q, k = (x @ a).split(8, 1)
        return q + k, (x @ b).unbind(1)[3]

    assert frozen(function, [torch.randn(16, 16), torch.randn(16, 8)], torch.randn(6, 16))[1] == 1


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (lambda a, b, x, y: (x @ a, y @ b), (8, 8)),
        (lambda a, b, x, y: (x @ a, x @ b), (8, 7)),
        (lambda a, b, x, y: (torch.addmm(y[:, :8], x, a), torch.addmm(y[:, :8], x, b)), (8, 8)),
        (lambda a, b, x, y: (torch.addmm(y[0, :8], x, a, beta=2), x @ b), (8, 8)),
        (lambda a, b, x, y: (a @ x[:8], b @ x[:8]), (8, 8)),
    ],
    ids=["two inputs", "odd columns", "other additions", "scaled", "constants on the left"],
)
def test_others_stay(function: Callable[..., Any], columns: tuple[int, int]) -> None:
    pair = [torch.randn(16, n) for n in columns]
    assert frozen(function, pair, torch.randn(16, 16), torch.randn(16, 16)) == (2, 2)
