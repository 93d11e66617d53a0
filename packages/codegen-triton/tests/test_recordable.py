"""Which programs may be recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.codegen import is_recordable

aten, collectives = torch.ops.aten, torch.ops._c10d_functional


def summed(graph: torch.fx.Graph, x: torch.fx.Node) -> torch.fx.Node:
    """``x`` summed over all processes."""
    begun = graph.call_function(collectives.all_reduce.default, (x, "sum", "0"))
    begun.meta["val"] = x.meta["val"].clone()
    return graph.call_function(collectives.wait_tensor.default, (begun,))


def squared(graph: torch.fx.Graph, x: torch.fx.Node) -> torch.fx.Node:
    return graph.call_function(aten.mm.default, (x, x))


@pytest.mark.parametrize(("make", "recordable"), [(squared, True), (summed, False)])
def test_collectives_are_not_recorded(
    codegen: TritonCodegen,
    make: Callable[[torch.fx.Graph, torch.fx.Node], torch.fx.Node],
    recordable: bool,
) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = FakeTensorMode().from_tensor(torch.ones(4, 4))
    result = make(graph, x)
    result.meta["val"] = x.meta["val"].clone()
    graph.output((result,))
    lowered: Any = weft_loop_ir.lower(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert is_recordable(weft_loop_ir.schedule(lowered, codegen.schedule_options)) is recordable
