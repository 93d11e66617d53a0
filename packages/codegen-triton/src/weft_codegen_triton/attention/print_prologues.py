"""Prints what attention does before it reads operands: computes blocks, stores rows of keys and values."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from weft_loop_ir import AttentionKernel, Buffer, Kernel, MatrixOperand, ranges_for
from weft_loop_ir.attention.prologues import COLUMN, ROW, Loops, producer_loops, row_store
from weft_loop_ir.bodies.edit import with_expressions

from weft_codegen_triton.attention.functions import depth_of, padded, within
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import triton_dtype
from weft_codegen_triton.kernel.kernel_printer import stores_half


class ElementPrinter(BodyPrinter):
    """Prints what ``kernel`` does at a block of ``operand``, and holds what it stores.

    The lines go on where those of ``outer`` end.  The block has ``rows`` that are called ``row``, and all
    columns; ``mask`` says which rows there are, if not all.
    """

    def __init__(
        self,
        outer: BodyPrinter,
        kernel: Kernel,
        operand: MatrixOperand,
        rows: str,
        row: str,
        mask: str,
    ) -> None:
        width = operand.size[2]
        column = depth_of(width, "[None, :]")
        own = Tile(("y", "x"), f"[{rows}, {padded(width)}]", "[1, 1]")
        own.sizes = {loop.symbol: loop.size for loop in kernel.outer}
        masks = {"y": mask, "x": within("", column, width)}
        own.masks = {axis: mask for axis, mask in masks.items() if mask}
        own.names = {MatrixOperand.batch: "batch", ROW: row, COLUMN: column}
        own.symbol_axes = {ROW: frozenset("y"), COLUMN: frozenset("x")}
        super().__init__(own, outer.pointers, outer.dtype_of, frozenset(), outer.wide)
        self.lines, self.indent, self.count = outer.lines, outer.indent, outer.count
        self.scalars, self.for_half = outer.scalars, stores_half(kernel, outer.dtype_of)
        self.held: tuple[str, sympy.Expr, Text]

    def print(
        self, outer: BodyPrinter, kernel: Kernel, loops: Loops, operand: MatrixOperand
    ) -> Text:
        """The value that is stored, where the ``loops`` are what an element of ``operand`` tells."""
        sizes = zip((MatrixOperand.batch, ROW, COLUMN), operand.size, strict=True)
        ranges = ranges_for(tuple(sizes))
        values = {loop.symbol: sympy.S.Zero for loop in kernel.outer}
        values |= {loop.symbol: value for loop, value in loops}
        body = kernel.stages[0].body
        self.replay(
            with_expressions(body, lambda e: ranges.simplify(sympy.expand(e.xreplace(values))))
        )
        outer.count = self.count
        outer.uses_assert |= self.uses_assert
        return self.held[2]

    def write(self, buffer: str, index: sympy.Expr, value: Text, mode: str | None) -> None:
        self.held = buffer, index, value

    def print_store(self, outer: BodyPrinter, row: sympy.Expr) -> None:
        """Store the value, where its ``row`` lies from ``own_first`` up to ``own_end``."""
        code, axes = self.index(row)
        self.count = outer.count
        inside = f"((({code}) >= own_first) & (({code}) < own_end))"
        self.mask = self.name(inside, torch.bool, axes)
        super().write(*self.held, None)
        outer.count = self.count


def computed_rows(
    outer: BodyPrinter, buffers: Mapping[str, Buffer], kernel: Kernel, operand: MatrixOperand
) -> str:
    """A block of rows of ``operand``, whose elements ``kernel`` computes: zeros where there are none."""
    loops = producer_loops(kernel, operand, buffers)
    assert loops is not None
    printer = ElementPrinter(outer, kernel, operand, "YBLOCK", "yindex", "ymask")
    value = printer.print(outer, kernel, loops, operand)
    kind = triton_dtype(outer.dtype_of(operand.buffer))
    code, masks = f"{value.code}.to({kind})", " & ".join(printer.tile.masks.values())
    if value.axes != frozenset("yx"):
        code = f"tl.broadcast_to({code}, {printer.tile.shape})"
    return f"tl.where({masks}, {code}, 0.0).to({kind})" if masks else code


class RowStores:
    """The new row of keys and values of a matrix, computed before it is known which program stores it."""

    def __init__(self, outer: BodyPrinter, attention: AttentionKernel) -> None:
        self.outer = outer
        self.found: list[tuple[ElementPrinter, sympy.Expr]] = []
        for kernel in attention.stored:
            key, value = attention.key.turned(), attention.value
            operand = key if kernel.writes == (key.buffer,) else value
            found = row_store(kernel, operand)
            assert found is not None and found.several is None
            printer = ElementPrinter(outer, kernel, operand, "1", "0", "")
            printer.print(outer, kernel, found.loops, operand)
            self.found.append((printer, found.row))

    def store(self) -> None:
        """Store those that lie from ``own_first`` up to ``own_end``, for all threads to read."""
        for printer, row in self.found:
            printer.print_store(self.outer, row)
        self.outer.emit("tl.debug_barrier()")
