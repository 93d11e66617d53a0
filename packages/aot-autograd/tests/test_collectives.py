"""Where collectives stand in a graph: in order, started early and waited for late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
import torch.fx
import weft_aot_autograd
import weft_functionalize
from torch import Tensor

if not torch.distributed.is_available():
    pytest.skip("this torch has no collectives", allow_module_level=True)

collectives = torch.ops._c10d_functional


def reduced(x: Tensor) -> Tensor:
    return collectives.wait_tensor(collectives.all_reduce(x, "sum", "0"))


def gathered(x: Tensor) -> Tensor:
    return collectives.wait_tensor(collectives.all_gather_into_tensor(x, 2, "0"))


def program(x: Tensor, y: Tensor) -> Any:
    first = reduced(x.exp())
    local = (x @ y).sin()
    second = gathered(y.cos())
    return first * local.sum(), second @ local


def names(graph: torch.fx.Graph) -> list[str]:
    return [
        n.target._schema.name.partition("::")[2]
        for n in graph.nodes
        if isinstance(n.target, torch._ops.OpOverload)
    ]


def functional(*inputs: Tensor) -> Any:
    return weft_functionalize.functionalize(torch.fx.symbolic_trace(program), list(inputs))


def test_collectives_start_early_and_are_waited_for_late() -> None:
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    graph = weft_aot_autograd.trace_inference(functional(x, y)).graph_module.graph
    order = names(graph)
    start, wait = order.index("all_reduce"), order.index("wait_tensor")
    assert order[start - 1] == "exp"
    assert {"mm", "sin", "cos", "all_gather_into_tensor"} <= set(order[start:wait])
    assert order.index("all_gather_into_tensor") == order.index("cos") + 1
    assert order[-3:-1].count("wait_tensor") == 1  # each stands before its reader
    graph.lint()


def test_collectives_of_backward_keep_their_order() -> None:
    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    joint = weft_aot_autograd.trace_joint(functional(x, y))
    assert joint is not None
    parts = weft_aot_autograd.partition(joint)
    forward, backward = names(parts.forward.graph), names(parts.backward.graph)
    assert [n for n in forward if n.startswith("all_")] == ["all_reduce", "all_gather_into_tensor"]
    assert "reduce_scatter_tensor" in backward and "all_reduce" in backward
    saved = [s.output_index for s in parts.saved if s.output_index is not None]
    (output,) = parts.forward.graph.find_nodes(op="output")
    for index in saved:
        assert "all_" not in str(output.args[0][index].target)


def test_equal_collectives_are_not_merged_nor_dropped() -> None:
    def twice(x: Tensor) -> Tensor:
        reduced(x)
        return reduced(x) + reduced(x)

    module = torch.fx.symbolic_trace(twice)
    traced = weft_aot_autograd.trace_inference(
        weft_functionalize.functionalize(module, [torch.randn(3)])
    )
    assert names(traced.graph_module.graph).count("all_reduce") == 3
