"""The scheduler's passes, in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from weft_loop_ir.guesses import LARGE, guessed
from weft_loop_ir.ir import (
    Buffer,
    BufferView,
    ExternCall,
    Kernel,
    Loop,
    Region,
    Schedule,
    Step,
)
from weft_loop_ir.loop_graph import LoopGraph, Node, item_reads, item_writes
from weft_loop_ir.schedule.computed_again import compute_again
from weft_loop_ir.schedule.dead_stores import without_dead_stores
from weft_loop_ir.schedule.dependency_graph import DependencyGraph
from weft_loop_ir.schedule.element_loops import element_loops
from weft_loop_ir.schedule.elsewhere_first import calls_elsewhere_first
from weft_loop_ir.schedule.fusion import fuse_groups
from weft_loop_ir.schedule.groups import Group
from weft_loop_ir.schedule.kernel_names import kernel_name
from weft_loop_ir.schedule.loop_kernels import loop_kernel, turn_conditions
from weft_loop_ir.schedule.memory_plan import plan_memory, storage_elements
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.parallel_kernels import run_in_parallel
from weft_loop_ir.schedule.select_branches import select_branches
from weft_loop_ir.schedule.split_reductions import split_large_reductions
from weft_loop_ir.schedule.split_scans import split_long_scans
from weft_loop_ir.schedule.stages import build_kernel
from weft_loop_ir.schedule.vectorize_loops import vectorize_loops
from weft_loop_ir.verify import verify


def schedule(loop_graph: LoopGraph, options: ScheduleOptions | None = None) -> Schedule:
    """Fuse, order and place the nodes of ``loop_graph``.  The result is the same from run to run.

    Raises :class:`~weft_loop_ir.VerificationError` with ``options.verify`` where a pass gave a wrong program.
    """
    options = options or ScheduleOptions()
    _check(loop_graph, options)
    passes: tuple[Callable[[LoopGraph], LoopGraph], ...] = (
        _with_calls_elsewhere_first,
        lambda before: turn_conditions(select_branches(before, options)),
        lambda before: vectorize_loops(before, options),
        element_loops,
        lambda before: split_long_scans(split_large_reductions(before, options), options),
    )
    for change in passes:
        before, loop_graph = loop_graph, change(loop_graph)
        if loop_graph is not before:
            _check(loop_graph, options)
    returned = {o.buffer for o in loop_graph.outputs if isinstance(o, BufferView)}
    steps = _Scheduler(loop_graph, options).block(loop_graph.nodes, returned)
    steps = calls_elsewhere_first(loop_graph, steps)  # kernels may have come before them
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


def _with_calls_elsewhere_first(loop_graph: LoopGraph) -> LoopGraph:
    nodes = calls_elsewhere_first(loop_graph, loop_graph.nodes)
    return loop_graph if nodes == loop_graph.nodes else replace(loop_graph, nodes=nodes)


def _check(program: LoopGraph | Schedule, options: ScheduleOptions) -> None:
    if options.verify:
        verify(program)


def _bytes(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    return {
        name: guessed(storage_elements(buffer) * buffer.layout.dtype.itemsize, LARGE)
        for name, buffer in buffers.items()
    }


class _Scheduler:
    """Schedules the blocks of one loop graph, each by itself; kernels are numbered through all of them."""

    def __init__(self, loop_graph: LoopGraph, options: ScheduleOptions) -> None:
        self.buffers = loop_graph.buffers
        self.operators = loop_graph.operators
        self.order = {name: position for position, name in enumerate(loop_graph.operators)}
        self.options = options
        self.sizes = _bytes(loop_graph.buffers)
        self.numbers = itertools.count()
        self.batches = itertools.count()

    def block(self, nodes: Sequence[Node], kept: Set[str]) -> tuple[Step, ...]:
        """The steps of a block; ``kept`` are the buffers that something outside it touches."""
        graph = DependencyGraph(nodes, self.buffers)
        fuse_groups(graph, self.sizes, self.options)
        payloads = graph.ordered()
        readers: dict[str, set[int]] = {}
        writers: dict[str, set[int]] = {}
        for position, payload in enumerate(payloads):
            reads, writes = _accesses(payload)
            for name in reads:
                readers.setdefault(name, set()).add(position)
            for name in writes:
                writers.setdefault(name, set()).add(position)
        steps: list[Step] = []
        for position, payload in enumerate(payloads):
            if isinstance(payload, ExternCall):
                steps.append(payload)
            elif isinstance(payload, Kernel):
                steps.append(self._named(payload))
            elif isinstance(payload, Region):
                outside = {
                    name
                    for name in {**readers, **writers}
                    if (readers.get(name, set()) | writers.get(name, set())) != {position}
                }
                steps.append(self._one_kernel(self._region(payload, outside | kept)))
            else:

                def is_private(name: str, position: int = position) -> bool:
                    if name in kept or writers.get(name) != {position}:
                        return False
                    return readers.get(name, set()) <= {position}

                kernel = build_kernel(
                    payload, lambda name: self.buffers[name].layout.dtype, is_private, self.options
                )
                steps.append(self._named(kernel))
        steps = list(without_dead_stores(steps, self.buffers))
        if self.options.again_elements is not None:
            steps = compute_again(steps, self.buffers, kept, self.options.again_elements)
        return run_in_parallel(steps, self.buffers, self.sizes, self.options, self.batches)

    def _named(self, kernel: Kernel) -> Kernel:
        """``kernel`` with a name that says what it computes, and a number, by which it is the only one."""
        origins = {name for name in kernel.origins if name in self.order}
        words = kernel_name(
            self.operators[name] for name in sorted(origins, key=self.order.__getitem__)
        )
        return replace(kernel, name=f"{words}_{next(self.numbers)}")

    def _one_kernel(self, region: Region) -> Step:
        """The kernel that a loop can be, else the region."""
        kernel = loop_kernel(region, self.buffers) if isinstance(region, Loop) else None
        return region if kernel is None else kernel

    def _region(self, region: Region, kept: Set[str]) -> Region:
        if isinstance(region, Loop):
            kept = kept | set(region.carried)
            kept = kept | (set() if region.predicate is None else {region.predicate.buffer})
        first, second = region.blocks
        return region.with_blocks(
            self.block(first, kept | _touched(second)), self.block(second, kept | _touched(first))
        )


def _accesses(payload: Group | ExternCall | Region | Kernel) -> tuple[Set[str], Set[str]]:
    if isinstance(payload, Group):
        return payload.reads, payload.writes
    return set(item_reads(payload)), set(item_writes(payload))


def _touched(block: Sequence[Node]) -> set[str]:
    return {name for item in block for name in (*item_reads(item), *item_writes(item))}


def _used_buffers(steps: tuple[Step, ...], loop_graph: LoopGraph) -> dict[str, Buffer]:
    """The buffers that are left: an intermediate that became local or vanished is dropped."""
    used = {o.buffer for o in loop_graph.outputs if isinstance(o, BufferView)}
    for step in steps:
        used.update(item_reads(step))
        used.update(item_writes(step))
    return {
        name: buffer
        for name, buffer in loop_graph.buffers.items()
        if name in used or buffer.kind.is_given
    }
