"""Removal of stores that are overwritten before anything reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft_loop_ir.bodies import LoopBody
from weft_loop_ir.ir import Buffer, Kernel, LoopVariable
from weft_loop_ir.loop_graph import LoopNode, item_reads, item_writes
from weft_loop_ir.schedule.iterations import ONCE, accesses_in_loop, covers
from weft_loop_ir.schedule.memory_plan import storage_elements


def without_dead_stores(nodes: Sequence[Any], buffers: Mapping[str, Buffer]) -> tuple[Any, ...]:
    """``nodes`` of a block without those whose one result a later one overwrites, unread, as a whole.

    They are what a loop graph holds or what a schedule does: nodes and kernels are looked at.
    """
    last: dict[str, int] = {}
    dead: set[int] = set()
    for position, node in enumerate(nodes):
        reads, writes = item_reads(node), item_writes(node)
        for name in writes:
            before = last.get(name)
            if before is None or name in reads or not isinstance(node, LoopNode | Kernel):
                continue
            earlier = nodes[before]
            is_plain = isinstance(earlier, LoopNode | Kernel) and earlier.writes == (name,)
            if is_plain and name not in earlier.reads and _overwrites(node, buffers[name]):
                dead.add(before)
        for name in (*reads, *writes):
            last[name] = position
    return tuple(node for position, node in enumerate(nodes) if position not in dead)


def _overwrites(node: LoopNode | Kernel, buffer: Buffer) -> bool:
    """Whether ``node`` stores to every element of a buffer that it doesn't read."""
    elements = storage_elements(buffer)
    return any(
        covers(access, elements)
        for loops, body in _nests(node)
        for access in accesses_in_loop(body, ONCE, loops)
        if access.buffer == buffer.name
    )


def _nests(node: LoopNode | Kernel) -> Iterator[tuple[Sequence[LoopVariable], LoopBody]]:
    """The loops of each stage, with its body, where stores only replace what is there."""
    if isinstance(node, LoopNode):
        nests = [(node.loops, node.body)]
    else:
        nests = [((*node.outer, *s.inner), s.body) for s in node.stages if not s.is_reduction]
    for loops, body in nests:
        if not body.accumulates:
            yield loops, body
