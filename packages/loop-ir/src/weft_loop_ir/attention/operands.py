"""Matrices that kernels take: one for each element of a batch, read where they lie before copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
import torch

from weft_loop_ir.bodies import Conversion, Load
from weft_loop_ir.digits import digits_of
from weft_loop_ir.expressions import FloorDiv, Mod, loop_symbol
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import BufferView, Kernel, Layout, LoopVariable
from weft_loop_ir.ops import HALVES

FindWriter = Callable[[str], Kernel | None]
"""The kernel that alone writes a buffer, if its operands still hold what it read."""


@dataclass(frozen=True)
class MatrixOperand:
    """The matrices ``[batch, rows, columns]`` of a buffer, in elements: where each begins, and its steps.

    ``base`` is an expression over :attr:`batch`, which counts the matrices, and sizes.
    """

    batch: ClassVar[sympy.Symbol] = loop_symbol("batch", 0)

    buffer: str
    size: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    base: sympy.Expr
    steps: tuple[sympy.Expr, sympy.Expr]

    @classmethod
    def of(cls, buffer: str, place: BufferView | Layout) -> MatrixOperand:
        """All of ``place``, of two or three dimensions."""
        missing = 3 - len(place.size)
        batch, rows, columns = (sympy.S.One,) * missing + place.size
        step, *steps = (sympy.S.Zero,) * missing + place.stride
        base = place.offset + cls.batch * step
        return cls(buffer, (batch, rows, columns), base, (steps[0], steps[1]))

    def turned(self) -> MatrixOperand:
        """The same with rows and columns exchanged."""
        batch, rows, columns = self.size
        row_step, column_step = self.steps
        return MatrixOperand(
            self.buffer, (batch, columns, rows), self.base, (column_step, row_step)
        )


def operand_of(
    view: BufferView, writer: FindWriter, before_widening: bool = False
) -> MatrixOperand:
    """The matrices of ``view`` (of two or three dimensions), before copies that kernels made of them.

    With ``before_widening`` conversions from 16 bits to float32 are copies, too.
    """
    found = MatrixOperand.of(view.buffer, view)
    while True:
        before = _before_copy(found, writer, before_widening)
        if before is None:
            return found
        found = before


def _before_copy(
    operand: MatrixOperand, writer: FindWriter, before_widening: bool
) -> MatrixOperand | None:
    """``operand`` in what its buffer is a copy of; None if that is not known."""
    kernel = writer(operand.buffer)
    copied = None if kernel is None else _copied(kernel, operand.buffer, before_widening)
    if kernel is None or copied is None:
        return None
    source, load, store = copied
    return moved(operand, kernel.outer, store, load, source)


def moved(
    operand: MatrixOperand,
    every: Sequence[LoopVariable],
    before: sympy.Expr,
    after: sympy.Expr,
    buffer: str,
) -> MatrixOperand | None:
    """``operand`` in ``buffer``, where loops over ``every`` element have it at ``after``, not ``before``.

    None unless the loops are the digits of a position, and what is at ``after`` are matrices.
    """
    ones = {v.symbol: sympy.S.Zero for v in every if v.size == 1}
    loops = {v.symbol: v.size for v in every if v.size != 1}
    steps = steps_of(before.xreplace(ones), loops)
    if steps is None:
        return None
    row, column = loop_symbol("row", 0), loop_symbol("column", 0)
    batch, rows, columns = operand.size
    ranges = ranges_for(((MatrixOperand.batch, batch), (row, rows), (column, columns)))
    place = sympy.expand(operand.base + row * operand.steps[0] + column * operand.steps[1])
    digits = {s: ranges.simplify(Mod(FloorDiv(place, steps[s]), n)) for s, n in loops.items()}
    index = sympy.expand(after.xreplace({**digits, **ones}))
    row_step, column_step = index.coeff(row), index.coeff(column)
    base = sympy.expand(index - row * row_step - column * column_step)
    if {row, column} & (base.free_symbols | row_step.free_symbols | column_step.free_symbols):
        return None
    return MatrixOperand(buffer, operand.size, base, (row_step, column_step))


def steps_of(
    index: sympy.Expr, loops: Mapping[sympy.Symbol, sympy.Expr]
) -> dict[sympy.Symbol, sympy.Expr] | None:
    """What ``index`` multiplies loops of these sizes by; None unless they are the digits of a position."""
    digits = digits_of(index, loops)
    if digits is None or not all(n.is_Integer for n in loops.values()):
        return None
    return {digit.loop.symbol: digit.step for digit in digits}


def _copied(
    kernel: Kernel, name: str, before_widening: bool
) -> tuple[str, sympy.Expr, sympy.Expr] | None:
    """The buffer that ``kernel`` copies to ``name``, where it loads and where it stores."""
    body = kernel.pointwise_body
    store = None if body is None else body.only_store(name)
    if body is None or store is None:
        return None
    load = body.at(store.value)
    if before_widening and isinstance(load, Conversion) and load.dtype == torch.float32:
        source = body.at(load.value)
        load = source if source.dtype in HALVES else load
    loops = {loop.symbol for loop in kernel.outer}
    if not isinstance(load, Load) or load.index.free_symbols - loops:
        return None
    return load.buffer, load.index, store.index
