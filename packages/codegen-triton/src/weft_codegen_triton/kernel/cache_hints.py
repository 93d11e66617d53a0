"""What the second-level cache should keep of long rows that a kernel reads more than once.

A row that a later stage reads again is to stay; what is read for the last time need not.  Without hints rows
that were read and rows that are written push each other out.

Rows too long for registers may be computed anew where they are read, instead of kept in memory.  A row that a
loop would store and a later loop load costs twice its memory traffic.  Computing it anew reads what it was
made of again, which is mostly still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import sympy
from weft_loop_ir import Kernel, LoopBody
from weft_loop_ir.bodies.edit import slice_of

KEEP = ', eviction_policy="evict_last"'
DROP = ', eviction_policy="evict_first"'


class CacheHints:
    """Hints for the loads of ``kernel``, of which the stages ``printed`` are loops over rows.

    ``recomputed`` are the local rows that are computed anew from others where they are read.
    """

    def __init__(
        self, kernel: Kernel, recomputed: Mapping[str, LoopBody], printed: Set[int]
    ) -> None:
        self._outer = {loop.symbol for loop in kernel.outer}
        self._written = set(kernel.writes)
        self._last_read: dict[str, int] = {}
        self._first_read: dict[str, int] = {}
        for position, stage in enumerate(kernel.stages):
            if stage.inner and position in printed:
                for name in _read(stage.body, recomputed):
                    self._last_read[name] = position
                    self._first_read.setdefault(name, position)

    @property
    def of_stores(self) -> str:
        """The options of a store: what is read again has the cache to itself."""
        is_read_again = any(
            last > self._first_read[name] and name not in self._written
            for name, last in self._last_read.items()
        )
        return DROP if is_read_again else ""

    def of_stage(self, position: int) -> Callable[[str, sympy.Expr], str]:
        """The options of a load in a stage, by the buffer and the index."""

        def hint(buffer: str, index: sympy.Expr) -> str:
            is_row = not self._outer.isdisjoint(index.free_symbols)
            if not is_row or buffer in self._written or buffer not in self._last_read:
                return ""
            if self._last_read[buffer] > position:
                return KEEP
            return DROP if self._first_read[buffer] < position else ""

        return hint


def _read(body: LoopBody, recomputed: Mapping[str, LoopBody]) -> set[str]:
    """The buffers that ``body`` loads from, through rows that are computed anew."""
    found: set[str] = set()
    for name in body.reads:
        found |= _read(recomputed[name], recomputed) if name in recomputed else {name}
    return found


# -- computed anew -------------------------------------------------------------------------------------


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
