"""Tables on the CPU that graphs on a GPU send there: before the part that is recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.recordable import head_length, is_recordable
from weft_codegen_triton.rewriting.sent_tensors import send_first

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def traced(function: Program, dtype: torch.dtype = torch.float16) -> torch.fx.GraphModule:
    """The graph of ``function`` of a matrix on a GPU and a table on the CPU."""
    with FakeTensorMode():
        x = torch.empty(8, 8, device="cuda", dtype=dtype)
        return make_fx(function, tracing_mode="fake")(x, torch.empty(8, 8))


def positions(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As of a video's patches: no buffer, so that it stays on the CPU."""
    return (x @ x).relu() + table.type_as(x).to(x.device, copy=True).detach()


def computed(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Computed there, too, and sent twice."""
    h = x @ x
    there = (table * 2 + 1).cos()[:1].to(x)
    return (h @ x) * there + table.sum(0).to(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("function", [positions, computed])
def test_tables_are_sent_before_what_is_recorded(
    codegen: TritonCodegen, function: Program, dtype: torch.dtype
) -> None:
    plain = traced(function, dtype)
    assert not is_recordable(weft_loop_ir.schedule(weft_loop_ir.lower(plain)))
    graph = traced(function, dtype)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    assert is_recordable(schedule)
    assert head_length(schedule) >= 1
    assert "def prepare(" in codegen.print(schedule).host.source


@pytest.mark.parametrize("function", [positions, computed])
def test_results_are_the_same(function: Program) -> None:
    graph = traced(function)
    order = [node.name for node in graph.graph.nodes]
    send_first(graph.graph)
    graph.graph.lint()
    assert sorted(order) == sorted(node.name for node in graph.graph.nodes)
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    graph.recompile()
    x, table = torch.randn(8, 8).half(), torch.randn(8, 8)
    torch.testing.assert_close(graph(x, table), function(x, table), rtol=0, atol=0)


def drawn(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    noise = torch.rand_like(x)
    return (x + noise) * torch.rand_like(table).to(x)


def on_gpu_alone(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return (x @ x) + 1


@pytest.mark.parametrize("function", [drawn, on_gpu_alone])
def test_what_stays(function: Program) -> None:
    graph = traced(function)
    order = [node.name for node in graph.graph.nodes]
    send_first(graph.graph)
    assert [node.name for node in graph.graph.nodes] == order
