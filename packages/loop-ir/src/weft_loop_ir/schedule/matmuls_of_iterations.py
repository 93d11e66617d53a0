"""Matmuls in a loop's body, as one call for all iterations.

Rows that follow each other, by one matrix, are one matmul; matrices that differ by iteration are a batch of
matmuls, with the iterations for its first dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.expressions import to_int
from weft_loop_ir.ir import Buffer, BufferView, Count, ExternCall
from weft_loop_ir.schedule.iterations import IterationAccess, trip_count, value_in

aten = torch.ops.aten

BATCHES = {
    aten.mm.default: (aten.bmm.default, aten.bmm.out),
    aten.addmm.default: (aten.baddbmm.default, aten.baddbmm.out),
}
"""Matmuls, and those of a batch."""


@dataclass(frozen=True)
class MatmulOfAll:
    """``call`` makes the results of all iterations, side by side in memory: a matrix (or batch) of ``size``.

    ``reads`` are the accesses to what isn't an iteration's own.
    """

    call: ExternCall
    size: tuple[sympy.Expr, ...]
    reads: tuple[IterationAccess, ...]


def matmul_of_all(
    call: ExternCall, count: Count, own: Mapping[str, sympy.Expr], buffers: Mapping[str, Buffer]
) -> MatmulOfAll | None:
    """The matmuls of all iterations as one; None where they aren't.

    ``own`` are the iterations' own buffers, which will have a row for each: of so many elements.
    """
    views = call.arguments
    if call.operator not in BATCHES or call.out_variant is None or call.keywords:
        return None
    (result,) = call.outputs
    if result is None or result not in own or not _is_contiguous(buffers[result]):
        return None
    moving = [_Moving.of(view, count, own) for view in views]
    operands = [operand for operand in moving if operand is not None]
    if len(operands) != len(views):
        return None
    trips = trip_count(count)
    reads = tuple(o.access() for o in operands if o.view.buffer not in own)
    rows, columns = buffers[result].layout.size
    if call.operator is aten.mm.default and operands[1].step == 0:
        stacked = operands[0].stacked(trips)
        if stacked is not None:
            one = replace(call, arguments=(stacked, operands[1].view))
            return MatmulOfAll(one, (trips * rows, columns), reads)
    operator, out_variant = BATCHES[call.operator]
    batch = replace(
        call,
        operator=operator,
        out_variant=out_variant,
        arguments=tuple(operand.batch(trips) for operand in operands),
    )
    return MatmulOfAll(batch, (trips, rows, columns), reads)


@dataclass(frozen=True)
class _Moving:
    """``view``, as it is in the first iteration; each later one begins ``step`` elements behind."""

    view: BufferView
    step: sympy.Expr

    @classmethod
    def of(cls, view: BufferView, count: Count, own: Mapping[str, sympy.Expr]) -> _Moving | None:
        """None where a view moves otherwise, or backwards."""
        if any(count.symbol in e.free_symbols for e in (*view.size, *view.stride)):
            return None
        if view.buffer in own:
            return (
                cls(view, own[view.buffer])
                if count.symbol not in view.offset.free_symbols
                else None
            )
        number = sympy.Dummy(integer=True, nonnegative=True)
        offset = sympy.expand(view.offset.subs(count.symbol, value_in(count, number)))
        step = offset.coeff(number)
        first = sympy.expand(offset - step * number)
        if number in first.free_symbols or not step.is_nonnegative:
            return None
        return cls(replace(view, offset=first), step)

    def access(self) -> IterationAccess:
        """What all iterations read."""
        view = self.view
        strides = tuple(to_int(s) for s in view.stride)
        extents = tuple(to_int(n) for n in view.size)
        return IterationAccess(
            view.buffer, False, to_int(self.step), strides, extents, view.offset, is_opaque=False
        )

    def stacked(self, trips: sympy.Expr) -> BufferView | None:
        """The rows of all iterations as one matrix; None where they don't follow each other."""
        (rows, inner), (stride, unit) = self.view.size, self.view.stride
        if self.step == 0 or not (rows == 1 or sympy.expand(self.step - rows * stride) == 0):
            return None
        stride = self.step if rows == 1 else stride
        return replace(self.view, size=(rows * trips, inner), stride=(stride, unit))

    def batch(self, trips: sympy.Expr) -> BufferView:
        """The matrices of all iterations; a vector, which is added to each row, as matrices of one row."""
        size, stride = self.view.size, self.view.stride
        if len(size) == 1:
            size, stride = (sympy.S.One, *size), (sympy.S.Zero, *stride)
        return replace(self.view, size=(trips, *size), stride=(self.step, *stride))


def _is_contiguous(buffer: Buffer) -> bool:
    layout = buffer.layout
    follows = layout.size[0] == 1 or layout.stride[0] == layout.size[1]
    return bool(layout.stride[1] == 1 and follows)
