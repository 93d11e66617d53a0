"""Rows of a buffer that leave the graph: the code after it gives each a storage of its own, as eager has.

In the graph the tensors that a kept loop appends to a list are rows of one buffer.  A caller could tell:
``torch.save`` of one would write all, and one would keep the memory of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...._torch import storage_identity
from ...models.torch.tensor import TensorVariable
from ...variables.base import Variable
from ..identity.aliases import storages_of
from .rows import LoopRows, RowVariable

if TYPE_CHECKING:
    from ....frame.emitter import Emitter
    from ..decisions import Place


class _SeparateRows(Variable):
    """A tuple of copies of some rows of a buffer, at ``positions``."""

    def __init__(self, rows: LoopRows, positions: list[int]) -> None:
        buffer = rows.buffer
        self._buffer = TensorVariable(buffer.node, buffer.fake, None)
        self._positions = positions

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(separate_rows, self._buffer, tuple(self._positions))


class _SeparateRow(Variable):
    """One of these copies, by its ``index`` among them."""

    kind = torch.Tensor

    def __init__(self, every: _SeparateRows, index: int) -> None:
        self._every = every
        self._index = index

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self._every)
        emitter.load_constant(self._index)
        emitter.load_subscript()


def separate_rows(buffer: torch.Tensor, positions: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Copies of the rows of ``buffer`` at ``positions``."""
    rows = buffer.unbind(0)
    return tuple([rows[position].clone() for position in positions])


def separate(outputs: Sequence[Variable]) -> Place | None:
    """Let each row among ``outputs`` be a tensor of its own after the graph.

    Gives the loop of which another output shows a part of a row, which has to stay a part of it; None if
    there is none.
    """
    escaping: dict[int, list[RowVariable]] = {}
    for output in outputs:
        if isinstance(output, RowVariable):
            escaping.setdefault(id(output.rows), []).append(output)
    shown = storages_of(v for v in outputs if not isinstance(v, RowVariable))
    for found in escaping.values():
        rows = found[0].rows
        if storage_identity(rows.buffer.fake) in shown:
            return rows.place
        every = _SeparateRows(rows, [row.position for row in found])
        for index, row in enumerate(found):
            row.loaded_instead = _SeparateRow(every, index)
    return None
