"""The kernel that goes through rows and adds up their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft_loop_ir import Buffer, Expansion, FusedKernel, Kernel


@dataclass(frozen=True)
class RowsAndColumns(FusedKernel):
    """``rows``, each of whose programs goes through ``part`` of them, and ``sums`` of columns of these.

    ``sums`` add up the same parts: their first outer loop is over them.  The stages that follow those of
    ``rows`` are theirs over the loops of ``rows``: what such a reduction stores lies at an index over columns
    alone, in the part's own row of the buffer.
    """

    rows: Kernel
    sums: tuple[Kernel, ...]
    part: int

    def expanded(self, buffers: Mapping[str, Buffer]) -> Expansion:
        return Expansion({}, (self.rows, *self.sums))
