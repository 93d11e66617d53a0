"""Prints what attention does before it reads operands: computes blocks, stores rows of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir import AttentionKernel, Kernel, MatrixOperand, ranges_for
from weft_loop_ir.attention.prologues import COLUMN, ROW, Loops, producer_loops, row_store
from weft_loop_ir.bodies.edit import with_expressions

from weft_codegen_triton.attention.score_tile import ScoreTile, padded, within
from weft_codegen_triton.kernel.blocks import power_of_two
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import triton_dtype
from weft_codegen_triton.kernel.kernel_printer import stores_half


@dataclass(frozen=True)
class Block:
    """A block of an operand: its shape, what its rows and columns are called, and the masks of these.

    ``turned``: rows are the second axis.  A mask may be empty.
    """

    shape: str
    row: str
    column: str
    row_mask: str
    column_mask: str
    turned: bool = False


class _ElementPrinter(BodyPrinter):
    """Prints what ``kernel`` does at a ``block``, behind the lines of ``tile``, and holds what it stores."""

    def __init__(self, tile: ScoreTile, kernel: Kernel, block: Block) -> None:
        outer, axes = tile.printer, ("x", "y") if block.turned else ("y", "x")
        own = Tile(axes, block.shape, "[1, 1]")
        own.sizes = {loop.symbol: loop.size for loop in kernel.outer}
        masks = {"y": block.row_mask, "x": block.column_mask}
        own.masks = {axis: mask for axis, mask in masks.items() if mask}
        own.names = {MatrixOperand.batch: "batch", ROW: block.row, COLUMN: block.column}
        own.symbol_axes = {ROW: frozenset("y"), COLUMN: frozenset("x")}
        super().__init__(own, tile.pointers, outer.dtype_of, frozenset(), tile.wide)
        self.lines, self.indent, self.count = outer.lines, outer.indent, outer.count
        self.scalars, self.for_half = outer.scalars, stores_half(kernel, outer.dtype_of)
        self.held: tuple[str, sympy.Expr, Text]

    def print(self, tile: ScoreTile, kernel: Kernel, loops: Loops, operand: MatrixOperand) -> Text:
        """The value that is stored, where the ``loops`` are what an element of ``operand`` tells."""
        sizes = zip((MatrixOperand.batch, ROW, COLUMN), operand.size, strict=True)
        ranges = ranges_for(tuple(sizes))
        values = {loop.symbol: sympy.S.Zero for loop in kernel.outer}
        values |= {loop.symbol: value for loop, value in loops}
        body = kernel.stages[0].body
        self.replay(
            with_expressions(body, lambda e: ranges.simplify(sympy.expand(e.xreplace(values))))
        )
        tile.printer.count = self.count
        tile.printer.uses_assert |= self.uses_assert
        return self.held[2]

    def write(self, buffer: str, index: sympy.Expr, value: Text, mode: str | None) -> None:
        self.held = buffer, index, value

    def print_store(self, tile: ScoreTile, row: sympy.Expr) -> None:
        """Store the value, where its ``row`` lies from ``own_first`` up to ``own_end``."""
        code, axes = self.index(row)
        self.count = tile.printer.count
        inside = f"((({code}) >= own_first) & (({code}) < own_end))"
        self.mask = self.name(inside, torch.bool, axes)
        super().write(*self.held, None)
        tile.printer.count = self.count


def computed_block(tile: ScoreTile, kernel: Kernel, operand: MatrixOperand, block: Block) -> str:
    """A block of ``operand``, whose elements ``kernel`` computes: zeros where a mask does not hold."""
    dtype = tile.buffers[operand.buffer].layout.dtype
    loops = producer_loops(kernel, operand, tile.buffers)
    assert loops is not None
    printer = _ElementPrinter(tile, kernel, block)
    value = printer.print(tile, kernel, loops, operand)
    code, kind = f"{value.code}.to({triton_dtype(dtype)})", triton_dtype(dtype)
    if value.axes != frozenset(printer.tile.axes):
        code = f"tl.broadcast_to({code}, {block.shape})"
    masks = " & ".join(m for m in (block.row_mask, block.column_mask) if m)
    return f"tl.where({masks}, {code}, 0.0).to({kind})" if masks else code


class RowStores:
    """The new rows of keys and values of a matrix, computed before it is known which program stores them."""

    def __init__(self, tile: ScoreTile, attention: AttentionKernel) -> None:
        self.tile = tile
        self.found: list[tuple[_ElementPrinter, sympy.Expr]] = []
        for number, kernel in enumerate(attention.stored):
            key, value = attention.key.turned(), attention.value
            operand = key if kernel.writes == (key.buffer,) else value
            self.found.append(self._compute(kernel, operand, f"new{number}"))

    def _compute(
        self, kernel: Kernel, operand: MatrixOperand, name: str
    ) -> tuple[_ElementPrinter, sympy.Expr]:
        found, width = row_store(kernel, operand), operand.size[2]
        assert found is not None
        count = 1 if found.several is None else int(found.several.size)
        rows, column = power_of_two(count), f"depth{padded(width)}[None, :]"
        mask = "" if rows == count else f"({name} < {count})"
        block = Block(f"[{rows}, {padded(width)}]", name, column, mask, within("", column, width))
        several = () if found.several is None else ((found.several, ROW),)
        if several:
            self.tile.emit(f"{name} = tl.arange(0, {rows})[:, None]")
        printer = _ElementPrinter(self.tile, kernel, block)
        printer.print(self.tile, kernel, (*found.loops, *several), operand)
        return printer, found.row.xreplace({loop.symbol: value for loop, value in several})

    def store(self) -> None:
        """Store those that lie from ``own_first`` up to ``own_end``, for all threads to read."""
        for printer, row in self.found:
            printer.print_store(self.tile, row)
        self.tile.emit("tl.debug_barrier()")
