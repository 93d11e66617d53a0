"""Which programs may be recorded as CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import compiled
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.recordable import is_recordable
from weft_codegen_triton.runtime.interpreter import InterpretedDevice

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


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_places_that_a_mask_says_are_not_recorded(
    codegen: TritonCodegen, dtype: torch.dtype
) -> None:
    """As in the gradient of ``x[mask]``: the library counts them on the host."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    values = [torch.ones(4, 3), torch.zeros(4, dtype=dtype), torch.ones(4, 3)]
    x, index, added = (graph.placeholder(name) for name in ("x", "index", "added"))
    for node, value in zip((x, index, added), values, strict=True):
        node.meta["val"] = mode.from_tensor(value)
    result = graph.call_function(aten.index_put.default, (x, [index], added, dtype == torch.bool))
    result.meta["val"] = x.meta["val"].clone()
    graph.output((result,))
    lowered: Any = weft_loop_ir.lower(torch.fx.GraphModule(torch.nn.Module(), graph))
    schedule = weft_loop_ir.schedule(lowered, codegen.schedule_options)
    assert is_recordable(schedule) is (dtype == torch.int64)


def test_short_programs_are_not_recorded(
    codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InterpretedDevice, "records", True)
    x = torch.randn(8, 8)

    def steps(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: functools.reduce(lambda y, _: y @ x, range(count), x)

    for count, recorded in ((1, False), (3, False), (4, True)):
        program = compiled(codegen, steps(count), x)
        assert (program.not_recorded is None) is recorded


def test_gradients_are_recorded_again_after_a_call(codegen: TritonCodegen) -> None:
    x = torch.randn(9, 9, requires_grad=True)
    program = compiled(codegen, lambda x: x @ x, x.detach())
    (result,) = program(x)
    assert not result.requires_grad and torch.is_grad_enabled()
    with pytest.raises(RuntimeError):
        program(x[:3])
    assert torch.is_grad_enabled()
    with torch.no_grad():
        program(x)
        assert not torch.is_grad_enabled()
