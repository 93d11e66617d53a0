"""What becomes of a program whose input is on another device than the CPU, where there is none."""

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
from weft_loop_ir import Schedule

META = torch.device("meta")


class Seen(Exception):
    """Ends a capture whose schedule is known."""


def move(module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Have a captured graph work on a device without memory, as if it were a GPU."""

    def moved(value: Any) -> Any:
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            node.meta["example_value"] = moved(node.meta["example_value"])


def schedule_elsewhere(function: Callable[..., Any], captured_on: str = "cpu") -> Schedule:
    """The schedule of ``function`` for a tensor on another device than the CPU.

    ``captured_on``: where it is during the capture, which asks it for values if control flow depends on them.
    """
    schedules: list[Schedule] = []

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
        capture(function, backend=backend)(torch.rand(6, 4, device=captured_on))
    (schedule,) = schedules
    return schedule
