"""Tells a schedule which of its results nobody sees but the caller."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from weft_loop_ir.ir import BufferKind, BufferView, Schedule


def with_private_results(schedule: Schedule, positions: Collection[int]) -> Schedule:
    """``schedule`` whose results at ``positions`` are private: the caller gives them to nobody.

    What backward reads of forward is.  A buffer that other results are made of too is not private.
    """
    made = BufferKind.OUTPUT, BufferKind.INTERMEDIATE
    private: set[str] = set()
    seen: set[str] = set()
    for position, output in enumerate(schedule.outputs):
        if isinstance(output, BufferView):
            (private if position in positions else seen).add(output.buffer)
    names = (name for name in private - seen if schedule.buffers[name].kind in made)
    return dataclasses.replace(schedule, private=frozenset(names))
