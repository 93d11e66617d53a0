"""Parameters as constants of the graph: what is folded, what is not, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

aten = torch.ops.aten


def frozen(
    function: Callable[..., Any], constants: list[torch.Tensor], *inputs: torch.Tensor
) -> torch.fx.GraphModule:
    """The frozen graph of ``function(*constants, *inputs)``, which gives what eager does."""
    with torch.no_grad():
        graph = make_fx(lambda *v: (function(*v),), tracing_mode="fake", pre_dispatch=False)(
            *constants, *inputs
        )
        result = weft_loop_ir.freeze(graph, dict(enumerate(constants)))
        expected = function(*constants, *inputs)
    (value,) = result(*constants, *inputs)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(result))
    weft_loop_ir.verify(schedule)
    (value,) = weft_loop_ir.evaluate(schedule, [*constants, *inputs])
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    assert value.stride() == expected.stride()
    return result


def operators(graph: torch.fx.GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    graph = frozen(lambda w, x: x @ torch.tanh(w * 2).t(), [torch.randn(5, 4)], torch.randn(3, 4))
    assert operators(graph) == [aten.t.default, aten.mm.default]


def test_views_of_constants_share_their_memory() -> None:
    weight = torch.randn(5, 4)
    graph = frozen(lambda w, x: x @ w.t(), [weight], torch.randn(3, 4))
    (held,) = graph.buffers()
    assert held.data_ptr() == weight.data_ptr()


def test_growing_and_random_results_are_not_kept() -> None:
    column = torch.randn(40, 1)
    graph = frozen(lambda w, x: x + (w * torch.ones(1, 40)), [column], torch.randn(40, 40))
    assert aten.mul.Tensor in operators(graph)
    graph = make_fx(lambda w, x: (x + F.dropout(w, 0.5, True),), tracing_mode="fake")(
        torch.ones(8), torch.ones(8)
    )
    result = weft_loop_ir.freeze(graph, {0: torch.ones(8)})
    assert not torch.equal(*(result(torch.ones(8), torch.ones(8))[0] for _ in range(2)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norms_join_convolutions(bias: bool, affine: bool, groups: int) -> None:
    def function(*values: torch.Tensor) -> torch.Tensor:
        kernel, mean, variance, *others, x = values
        first = others.pop() if bias else None
        weight, shift = others if affine else (None, None)
        y = F.conv2d(x, kernel, first, groups=groups)
        (y, *_) = aten._native_batch_norm_legit_no_training(
            y, weight, shift, mean, variance, 0.1, 1e-3
        )
        return y.relu()

    constants = [torch.randn(6, 4 // groups, 3, 3), torch.randn(6), torch.rand(6) + 0.5]
    constants += [torch.randn(6) for _ in range(2 * affine + bias)]
    graph = frozen(function, constants, torch.randn(2, 4, 7, 7))
    assert operators(graph) == [aten.convolution.default, aten.relu.default]


def test_a_batch_norm_stays_where_its_convolution_has_other_readers() -> None:
    def function(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> Any:
        y = F.conv2d(x, w)
        return aten._native_batch_norm_legit_no_training(y, None, None, m, v, 0.1, 1e-3)[0] + y

    constants = [torch.randn(3, 2, 1, 1), torch.randn(3), torch.rand(3) + 1]
    graph = frozen(function, constants, torch.randn(1, 2, 4, 4))
    assert aten._native_batch_norm_legit_no_training.default in operators(graph)


def test_a_constant_and_several_views_of_it_are_read() -> None:
    def function(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        found = F.embedding(i, w)
        return torch.cat([found @ part.t() for part in (w[:4], w[4:])], -1)

    table = torch.randn(9, 4)
    graph = frozen(function, [table], torch.tensor([[1, 8], [0, 3]]))
    (held,) = graph.buffers()
    assert held.data_ptr() == table.data_ptr()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.exp(), False),
        (lambda x: F.dropout(x, 0.5, True), True),
        (lambda x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2, (x,)), False),
        (lambda x: torch.cond(x.sum() > 0, torch.rand_like, torch.neg, (x,)), True),
    ],
)
def test_effects_of_a_graph(function: Callable[..., Any], expected: bool) -> None:
    graph = make_fx(lambda x: (function(x),), tracing_mode="fake")(torch.randn(3))
    assert weft_loop_ir.has_effects(graph) is expected
