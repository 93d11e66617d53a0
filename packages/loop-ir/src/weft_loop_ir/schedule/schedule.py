"""The scheduler's passes, in order."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from weft_loop_ir.ir import Buffer, BufferKind, BufferView, Schedule, Step
from weft_loop_ir.loop_graph import LoopGraph, extern_reads
from weft_loop_ir.schedule.dependency_graph import DependencyGraph
from weft_loop_ir.schedule.fusion import fuse_groups
from weft_loop_ir.schedule.groups import Group
from weft_loop_ir.schedule.memory_plan import plan_memory, step_reads, step_writes, storage_elements
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.split_reductions import split_large_reductions
from weft_loop_ir.schedule.stages import build_kernel
from weft_loop_ir.verify import verify

SYMBOLIC_BYTES = 1 << 20
"""What a buffer of symbolic size counts in fusion scores."""


def schedule(loop_graph: LoopGraph, options: ScheduleOptions | None = None) -> Schedule:
    """Fuse, order and place the nodes of ``loop_graph``.  The result is the same from run to run.

    Raises :class:`~weft_loop_ir.VerificationError` with ``options.verify`` where a pass gave a wrong program.
    """
    options = options or ScheduleOptions()
    _check(loop_graph, options)
    loop_graph = split_large_reductions(loop_graph, options)
    _check(loop_graph, options)
    graph = DependencyGraph(loop_graph)
    fuse_groups(graph, _bytes(loop_graph.buffers), options)
    steps = _steps(graph, loop_graph, options)
    buffers = _used_buffers(steps, loop_graph)
    result = Schedule(
        loop_graph.name,
        loop_graph.inputs,
        loop_graph.symbols,
        buffers,
        steps,
        loop_graph.outputs,
        plan_memory(steps, buffers, options),
        loop_graph.fallbacks,
        loop_graph.constants,
    )
    _check(result, options)
    return result


def _check(program: LoopGraph | Schedule, options: ScheduleOptions) -> None:
    if options.verify:
        verify(program)


def _bytes(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    result = {}
    for name, buffer in buffers.items():
        elements = storage_elements(buffer)
        if isinstance(elements, sympy.Integer):
            result[name] = int(elements) * buffer.layout.dtype.itemsize
        else:
            result[name] = SYMBOLIC_BYTES
    return result


def _steps(
    graph: DependencyGraph, loop_graph: LoopGraph, options: ScheduleOptions
) -> tuple[Step, ...]:
    payloads = graph.ordered()
    returned = {o.buffer for o in loop_graph.outputs if isinstance(o, BufferView)}
    readers: dict[str, set[int]] = {}
    writers: dict[str, set[int]] = {}
    for position, payload in enumerate(payloads):
        names = payload.reads if isinstance(payload, Group) else extern_reads(payload)
        for name in names:
            readers.setdefault(name, set()).add(position)
        if isinstance(payload, Group):
            for name in payload.writes:
                writers.setdefault(name, set()).add(position)
    steps: list[Step] = []
    number = 0
    for position, payload in enumerate(payloads):
        if not isinstance(payload, Group):
            steps.append(payload)
            continue

        def is_private(name: str, position: int = position) -> bool:
            if name in returned or writers.get(name) != {position}:
                return False
            return readers.get(name, set()) <= {position}

        steps.append(
            build_kernel(
                f"kernel{number}",
                payload,
                lambda name: loop_graph.buffers[name].layout.dtype,
                is_private,
                options,
            )
        )
        number += 1
    return tuple(steps)


def _used_buffers(steps: tuple[Step, ...], loop_graph: LoopGraph) -> dict[str, Buffer]:
    """The buffers that are left: an intermediate that became local or vanished is dropped."""
    used = {o.buffer for o in loop_graph.outputs if isinstance(o, BufferView)}
    for step in steps:
        used.update(step_reads(step))
        used.update(step_writes(step))
    return {
        name: buffer
        for name, buffer in loop_graph.buffers.items()
        if name in used or buffer.kind in (BufferKind.INPUT, BufferKind.CONSTANT)
    }
