"""Which kernel of a schedule is the first to be farther from float64 than eager's operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
import weft_loop_ir
from weft_loop_ir import BufferKind, BufferView, Kernel, ParallelKernels, Schedule

from ..locations import UNKNOWN, describe_frames, frames_of_trace
from .distance import FACTOR, distance, doubled, resolution, widened
from .reduce import node_values

Run = Callable[[Schedule], Callable[..., Sequence[Any]]]
"""What makes a function of all inputs of a schedule, which gives its outputs."""


@dataclass(frozen=True)
class KernelFault:
    """A kernel whose result ``node`` is too far from float64, and where in the program its operators are."""

    name: str
    node: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        where = f", for {'; '.join(self.places)}" if self.places else ""
        return f"{self.name} (its {self.node}){where}"


def first_inaccurate_kernel(
    forward: torch.fx.GraphModule, schedule: Schedule, run: Run, inputs: Sequence[Any]
) -> KernelFault | None:
    """The first kernel of ``schedule`` that writes what is farther from float64 than eager's value.

    What it writes is compared with the last of its operators whose result has that shape and dtype; None
    where no kernel writes such.
    """
    eager, exact = node_values(forward, inputs), node_values(doubled(forward), widened(inputs))
    order = {node.name: node for node in forward.graph.nodes}
    kernels = list(_kernels(schedule))
    written = [name for kernel in kernels for name in kernel.writes if name in schedule.buffers]
    observed = _with_outputs(schedule, written)
    results = run(observed)(*inputs)[len(schedule.outputs) :]
    found = dict(zip(written, results, strict=True))
    for kernel in kernels:
        for name in kernel.writes:
            value = found.get(name)
            node = None if value is None else _written(value, kernel, list(order), eager)
            if node is None:
                continue
            plain = [eager[node]], [exact[node]]
            allowed = FACTOR * distance(*plain) + resolution([eager[node]])
            if not distance([found[name]], [exact[node]]) <= allowed:
                origins = [order[o] for o in order if o in kernel.origins]
                places = dict.fromkeys(filter(None, map(_place, origins)))
                return KernelFault(kernel.name, node, tuple(places))
    return None


def _kernels(schedule: Schedule) -> Iterator[Kernel]:
    for step in schedule.steps:
        if isinstance(step, ParallelKernels):
            yield from step.kernels
        elif isinstance(step, Kernel):
            yield step


def _with_outputs(schedule: Schedule, names: Sequence[str]) -> Schedule:
    """The schedule whose results are also the buffers ``names``, as they are at its end."""
    buffers = dict(schedule.buffers)
    views = []
    for name in names:
        buffer = buffers[name]
        if buffer.kind is BufferKind.INTERMEDIATE:
            buffers[name] = replace(buffer, kind=BufferKind.OUTPUT)
        layout = buffer.layout
        views.append(BufferView(name, layout.size, layout.stride, layout.offset, layout.dtype))
    memory = weft_loop_ir.plan_memory(schedule.steps, buffers)
    return replace(schedule, buffers=buffers, outputs=(*schedule.outputs, *views), memory=memory)


def _written(
    value: torch.Tensor, kernel: Kernel, order: Sequence[str], eager: dict[str, Any]
) -> str | None:
    """The last operator of ``kernel`` whose result looks as ``value`` does."""
    for name in reversed(order):
        known = eager.get(name)
        if name not in kernel.origins or not isinstance(known, torch.Tensor):
            continue
        if known.shape == value.shape and known.dtype == value.dtype:
            return name
    return None


def _place(node: torch.fx.Node) -> str | None:
    place = describe_frames(frames_of_trace(node.meta.get("stack_trace") or ""))
    return None if place == UNKNOWN else place
