"""Flags of branches and loops are made on the CPU, and moved to the device of what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_bytecode_capture import capture
from weft_codegen_triton import TritonCodegen

META = torch.device("meta")


class Seen(Exception):
    """Ends a capture whose schedule is known."""


def settle(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        before = x
        x = (x + x.sin()) * 0.5
        if (x - before).abs().max() < 1e-6:
            break
    return x


def first_row_that_is_large(x: torch.Tensor) -> Any:
    for i in range(x.shape[0]):
        if x[i].sum() > 3:
            return x[i] * i
    return x.sum(0)


def until_small(x: torch.Tensor) -> torch.Tensor:
    while x.abs().max() > 1:
        if x.sum() < 0:
            x = -x
        x = x * 0.5
    return x


def move(module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Have a captured graph work on a device without memory, as if it were a GPU."""

    def moved(value: Any) -> Any:
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            node.meta["example_value"] = moved(node.meta["example_value"])


@pytest.mark.parametrize("function", [settle, first_row_that_is_large, until_small])
def test_flags_lie_where_everything_else_does(function: Callable[..., Any]) -> None:
    schedules = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        (first, *_) = module.graph.find_nodes(op="placeholder")
        move(module, first.meta["example_value"].fake_mode)
        fakes = [n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder")]
        functional = weft_functionalize.functionalize(module, fakes)
        graph = weft_aot_autograd.trace_inference(functional).graph_module
        codegen = TritonCodegen()
        codegen.rewrite(graph)
        lowered = weft_loop_ir.lower(graph, constant_inputs=frozenset(functional.lifted))
        schedules.append(weft_loop_ir.schedule(lowered, codegen.schedule_options))
        raise Seen

    with torch.no_grad(), pytest.raises(Seen):
        capture(function, backend=backend)(torch.rand(6, 4))
    (schedule,) = schedules
    assert {buffer.layout.device for buffer in schedule.buffers.values()} == {META}
