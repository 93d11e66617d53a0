"""Prints what is reduced of a tile's rows while they are in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy
import torch
from weft_loop_ir.contractions import COLUMN, ROW

from weft_codegen_triton.kernel.accumulators import Accumulators
from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, Text
from weft_codegen_triton.kernel.row_space import RowSpace
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.row_reductions import RowReduction

TILE = frozenset(("y", "x"))


@dataclass
class ColumnSpace(RowSpace):
    """A tile whose columns are reduced: their elements lie along ``y``, ``count`` of them."""

    count: int = 1
    is_whole: bool = True

    @property
    def elements(self) -> str:
        return str(self.count)

    @property
    def along(self) -> int:
        return 0

    @property
    def column(self) -> str:
        return "[None, :]"

    @property
    def shape(self) -> str:
        return "[YBLOCK, XBLOCK]"

    @property
    def mask(self) -> str | None:
        return None if self.is_whole else "ymask"


def print_reduction(reduction: RowReduction, matmul: MatmulKernel, printer: BodyPrinter) -> None:
    """Print ``reduction`` by ``printer``, which has printed what the loops of ``matmul`` store."""
    height, rows = matmul.tile.rows, int(matmul.contraction.rows)
    space = ColumnSpace(
        printer, True, None, "y", count=min(height, rows), is_whole=rows % height == 0
    )
    totals = Accumulators(printer, space)
    stored: list[tuple[ReductionResult, str, sympy.Expr]] = []

    def reduce(kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
        if value.axes != TILE:
            value = replace(value, code=f"tl.broadcast_to({value.code}, {space.shape})", axes=TILE)
        return totals.reduce(kind, dtype, value)

    def store(result: ReductionResult, buffer: str, index: sympy.Expr) -> None:
        stored.append((result, buffer, index))

    _name_places(matmul, printer)
    printer.reduce, printer.store_result, printer.for_half = reduce, store, False
    printer.replay(reduction.body)
    part = "" if reduction.parts is None else f"row_tile * {reduction.parts.width} + "
    printer.registers |= reduction.replaced.local_names
    for result, buffer, index in stored:
        value, place = totals.pending[result.number](), printer.index(index)[0]
        if buffer in printer.registers:
            printer.local[buffer, place] = value
        else:
            address = f"{printer.pointers[buffer]} + {part}{place}"
            printer.emit(f"tl.store({address}, {value.code}, xmask)")
            printer.loaded[buffer, address, "xmask"] = value
    if reduction.after:
        tile = printer.tile
        tile.axes, tile.shape, tile.masks = ("x",), "[1, XBLOCK]", {"x": "xmask"}
        for body in reduction.after:
            printer.replay(body)


def _name_places(matmul: MatmulKernel, printer: BodyPrinter) -> None:
    """Have ``printer`` know rows and columns by symbols, and what the loops store by these."""
    tile = printer.tile
    for symbol, axis in ((ROW, "y"), (COLUMN, "x")):
        tile.names.setdefault(symbol, f"{axis}index")
        tile.symbol_axes[symbol] = frozenset(axis)
        tile.sizes[symbol] = matmul.contraction.sizes[symbol]
    for store in matmul.stages[0].body.stores():
        (own, axes), place = printer.index(store.index), matmul.results[store.buffer]
        if store.buffer in printer.registers:
            printer.local[store.buffer, printer.index(place)[0]] = printer.local[store.buffer, own]
            continue
        pointer, mask = printer.pointers[store.buffer], printer.access_mask(axes)
        value = printer.loaded.get((store.buffer, f"{pointer} + {own}", mask))
        if value is not None:
            printer.loaded[store.buffer, f"{pointer} + {printer.index(place)[0]}", mask] = value
