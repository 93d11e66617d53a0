"""What becomes of a program with tensors on another device than the CPU, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from weft_loop_ir import ExternCall, Loop, Schedule

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


@dataclass(frozen=True)
class Elsewhere:
    """What becomes of a function: ``schedules`` are that of inference, or those of forward and backward."""

    functional: weft_functionalize.FunctionalGraph
    inputs: tuple[Any, ...]
    schedules: tuple[Schedule, ...]

    def evaluate(self, values: Mapping[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
        """The results of the first schedule, run on the CPU; ``values`` are those of inputs elsewhere."""

        def run(*inputs: Any) -> tuple[Any, ...]:
            return weft_loop_ir.evaluate(_on_cpu(self.schedules[0]), inputs)

        inputs = [values.get(v, v) if isinstance(v, torch.Tensor) else v for v in self.inputs]
        with torch.no_grad():
            return tuple(weft_functionalize.bind(self.functional, run)(*inputs))


def elsewhere(function: Callable[..., Any], *inputs: Any, training: bool) -> Elsewhere:
    """What becomes of a ``function`` of tensors on :data:`META` beside others on the CPU."""
    found: list[Elsewhere] = []

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        fakes = [n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder")]
        functional = weft_functionalize.functionalize(module, fakes)
        codegen = TritonCodegen()
        if training:
            joint = weft_aot_autograd.trace_joint(functional)
            assert joint is not None
            codegen.rewrite_joint(joint.graph_module, output_count=joint.output_count)
            codegen.rewrite(joint.graph_module)
            parts = weft_aot_autograd.partition(joint)
            graphs = [parts.forward, parts.backward]
        else:
            graphs = [weft_aot_autograd.trace_inference(functional).graph_module]
            codegen.rewrite(graphs[0])
        constants = frozenset(functional.lifted)
        lowered = [weft_loop_ir.lower(graph, constant_inputs=constants) for graph in graphs]
        schedules = [weft_loop_ir.schedule(one, codegen.schedule_options) for one in lowered]

        def run(*inputs: Any) -> Any:
            known = tuple(map(_copied, inputs))  # the program may write to them
            found.append(Elsewhere(functional, known, tuple(schedules)))
            return module.forward(*inputs)

        return run

    with torch.set_grad_enabled(training):
        capture(function, backend=backend)(*inputs)
    (one,) = found
    return one


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device == META:
        return value
    return value.detach().clone()


def _on_cpu(schedule: Schedule) -> Schedule:
    """``schedule`` with all that is on :data:`META` on the CPU instead, so that it can be run."""

    def moved(value: Any) -> Any:
        return torch.device("cpu") if value == META else value

    def moved_step(step: Any) -> Any:
        if isinstance(step, ExternCall):
            keywords = {name: moved(value) for name, value in step.keywords.items()}
            return replace(step, keywords=keywords)
        if isinstance(step, Loop):
            first, second = (tuple(map(moved_step, block)) for block in step.blocks)
            return step.with_blocks(first, second)
        return step

    buffers = {
        name: replace(buffer, layout=replace(buffer.layout, device=moved(buffer.layout.device)))
        for name, buffer in schedule.buffers.items()
    }
    return replace(schedule, buffers=buffers, steps=tuple(map(moved_step, schedule.steps)))
