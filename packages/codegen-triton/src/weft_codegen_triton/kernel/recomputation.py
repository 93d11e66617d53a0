"""Rows too long for registers that are computed anew where they are read, instead of kept in memory.

A row that a loop would store and a later loop load costs twice its memory traffic.  Computing it anew reads
what it was made of again, which is mostly still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft_loop_ir import Kernel, LoopBody
from weft_loop_ir.bodies.edit import slice_of

MAX_INSTRUCTIONS = 32
"""Beyond so many, memory is cheaper."""


def recomputable_rows(kernel: Kernel, overwritten: frozenset[str]) -> Mapping[str, LoopBody]:
    """The local rows of ``kernel`` that can be computed anew, with the bodies that do it.

    That takes one stage that stores the row, readers at the same index of the same loops, and operands that
    the kernel leaves as they are: buffers that aren't ``overwritten``, scalars, other such rows.
    """
    scalars = {b.name for b in kernel.local_buffers if b.size == 1}
    found: dict[str, LoopBody] = {}
    for buffer in kernel.local_buffers:
        if buffer.name in scalars:
            continue
        body = _producer(buffer.name, kernel)
        if body is None or len(body.instructions) > MAX_INSTRUCTIONS:
            continue
        loads, changed = set(body.reads), overwritten.union(kernel.writes)
        if loads & kernel.local_names <= scalars | found.keys() and loads.isdisjoint(changed):
            found[buffer.name] = body
    return found


def _producer(name: str, kernel: Kernel) -> LoopBody | None:
    """The part of a stage's body that computes the row ``name``; None where that isn't one place."""
    storing = [body for body in kernel.bodies if body.stores(name)]
    if len(storing) != 1 or len(kernel.places_of(name)) != 1:
        return None
    nested = (n for body in kernel.bodies for i in body.instructions for n in i.bodies)
    if any(body.loads(name) for body in nested):
        return None
    store = storing[0].only_store(name)
    return None if store is None else slice_of(storing[0], store.value)
