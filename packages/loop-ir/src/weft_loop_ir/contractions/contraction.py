"""What a matmul or a convolution computes, by index expressions: sums of products of two operands' elements.

``result[batch, row, column] = scale * sum over tap, inner of left * right + biases``, where an element of
``left`` is told by batch, row, tap and inner, one of ``right`` by batch, tap, inner and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.contractions.row_factors import RowFactor
from weft_loop_ir.ir import Kernel, LoopVariable
from weft_loop_ir.loop_nests import LoopNests
from weft_loop_ir.recording import BodyRecorder

BATCH, ROW, COLUMN, INNER, TAP = (
    sympy.Symbol(name, integer=True, nonnegative=True)
    for name in ("batch", "row", "column", "inner", "tap")
)
"""The places that indices of operands are made of."""

Loops = tuple[tuple[LoopVariable, sympy.Expr], ...]
"""Where a kernel's loops are, by expressions over places."""


@dataclass(frozen=True)
class Producer:
    """A kernel whose one result is an operand, computed anew wherever an element is loaded.

    ``loops`` says where the kernel's loops are for an element of the operand.  It is pointwise, or scales
    rows, by a ``factor`` that the contraction's sums are multiplied by instead.
    """

    kernel: Kernel
    loops: Loops
    factor: RowFactor | None = None


@dataclass(frozen=True)
class Operand:
    """``index`` is an element's position in ``buffer``, over the places above and size symbols.

    The element is zero where, for one of ``inside``, ``(expression, extent)``, the expression is negative or
    not below the extent: the border of an image.
    """

    buffer: str
    index: sympy.Expr
    inside: tuple[tuple[sympy.Expr, sympy.Expr], ...] = ()
    producer: Producer | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that its elements are loaded from."""
        return (self.buffer,) if self.producer is None else self.producer.kernel.reads


@dataclass(frozen=True)
class Bias:
    """``scale`` times an element of ``buffer``, at ``index`` over batch, row and column."""

    buffer: str
    index: sympy.Expr
    scale: float = 1.0


@dataclass(frozen=True)
class Groups:
    """Rows in groups, each with a right operand of its own, which ``BATCH`` tells.

    ``buffer`` holds, as integers of 32 bits ``step`` apart from ``offset`` on, the end of each of ``count``
    groups; rows behind the last end have no result.
    """

    buffer: str
    offset: int
    step: int
    count: int


@dataclass(frozen=True)
class Contraction:
    """Sizes count elements; ``dtype`` is that of the operands and of the result.

    The result lies by batch, row and column, the last side by side.  With ``by_channel`` the right operand
    has no sums but those over taps, and ``left`` is told by the column too: each channel by itself.
    """

    batch: sympy.Expr
    rows: sympy.Expr
    columns: sympy.Expr
    inner: sympy.Expr
    left: Operand
    right: Operand
    dtype: torch.dtype
    taps: sympy.Expr = sympy.S.One
    biases: tuple[Bias, ...] = ()
    scale: float = 1.0
    groups: Groups | None = None
    by_channel: bool = False
    is_convolution: bool = False

    @property
    def sizes(self) -> Mapping[sympy.Symbol, sympy.Expr]:
        """The extents of the places."""
        extents = (self.batch, self.rows, self.columns, self.inner, self.taps)
        if self.groups is not None:
            extents = (sympy.Integer(self.groups.count), *extents[1:])
        return dict(zip((BATCH, ROW, COLUMN, INNER, TAP), extents, strict=True))

    @property
    def position(self) -> sympy.Expr:
        """Of an element in the result."""
        batch = sympy.S.Zero if self.groups is not None or self.batch == 1 else BATCH
        return sympy.expand((batch * self.rows + ROW) * self.columns + COLUMN)

    @property
    def elements(self) -> sympy.Expr:
        """Of the result."""
        count = sympy.S.One if self.groups is not None else self.batch
        return sympy.expand(count * self.rows * self.columns)

    @property
    def is_static(self) -> bool:
        """Whether all sizes are numbers."""
        return all(size.is_Integer for size in self.sizes.values())

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that the sums are computed of."""
        names = [*self.left.reads, *self.right.reads, *(a.buffer for a in self.biases)]
        if self.groups is not None:
            names.append(self.groups.buffer)
        return tuple(dict.fromkeys(names))


# -- as loop nests -------------------------------------------------------------------------------------


def add_contraction(nests: LoopNests, contraction: Contraction, result: str) -> None:
    """Append what computes ``result``: the sums, scaled, with biases, rounded as libraries do."""
    groups, sizes = contraction.groups, contraction.sizes
    of_result = [BATCH, ROW, COLUMN] if groups is None else [ROW, COLUMN]

    def product(ops: BodyRecorder) -> Value:
        value = ops.mul(_element(ops, contraction.left), _element(ops, contraction.right))
        return value if groups is None else ops.where(_is_in_group(ops, groups), value, 0.0)

    def finish(ops: BodyRecorder, total: Value) -> Value:
        value = _times(ops, total, contraction.scale)
        for bias in contraction.biases:
            added = ops.to_dtype(ops.load(bias.buffer, bias.index), torch.float32)
            value = ops.add(value, _times(ops, added, bias.scale))
        return value

    nests.contract(
        [LoopVariable(place, sizes[place]) for place in of_result],
        [LoopVariable(place, sizes[place]) for place in sizes if place not in of_result],
        product,
        (result, contraction.position),
        finish,
    )


def _times(ops: BodyRecorder, value: Value, scale: float) -> Value:
    return value if scale == 1.0 else ops.mul(value, scale)


def _element(ops: BodyRecorder, operand: Operand) -> Value:
    """An element in float32; zero beyond the border of an image."""
    inside = None
    for expression, extent in operand.inside:
        place = ops.index_expr(expression, torch.int64)
        is_inside = ops.logical_and(
            ops.ge(place, 0), ops.lt(place, ops.index_expr(extent, torch.int64))
        )
        inside = is_inside if inside is None else ops.logical_and(inside, is_inside)
    if inside is None:
        loaded = ops.load(operand.buffer, operand.index)
    else:
        loaded = ops.masked(inside, lambda inner: inner.load(operand.buffer, operand.index), 0)
    return ops.to_dtype(loaded, torch.float32)


def _is_in_group(ops: BodyRecorder, groups: Groups) -> Value:
    """Whether the row is one of the group that ``BATCH`` tells: from the end before it to its own."""

    def end(inner: BodyRecorder, before: sympy.Expr) -> Value:
        index = groups.offset + groups.step * before
        return inner.to_dtype(inner.load(groups.buffer, index), torch.int64)

    row = ops.index_expr(ROW, torch.int64)
    has_one_before = ops.gt(ops.index_expr(BATCH, torch.int64), 0)
    first = ops.masked(has_one_before, lambda inner: end(inner, BATCH - 1), 0)
    return ops.logical_and(ops.ge(row, first), ops.lt(row, end(ops, BATCH)))
