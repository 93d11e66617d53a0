"""Prints what is reduced of a tile's rows while they are in registers."""

from __future__ import annotations

from dataclasses import dataclass

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
    """A program's tiles whose columns are reduced: their elements lie along ``y``, ``count`` of them.

    ``is_whole``: tiles have no rows but those that there are.
    """

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


class PrintedReduction:
    """What ``printer``, which has printed what the loops of ``matmul`` store, adds for ``reduction``.

    ``before`` are lines for before the first of several tiles.
    """

    def __init__(self, reduction: RowReduction, matmul: MatmulKernel, printer: BodyPrinter) -> None:
        self._reduction, self._printer = reduction, printer
        length, rows = matmul.rows_of_program, int(matmul.contraction.rows)
        space = ColumnSpace(printer, matmul.repeats == 1, None, "y")
        space.count, space.is_whole = min(length, rows), rows % length == 0
        self._totals = Accumulators(printer, space)
        self._stored: list[tuple[ReductionResult, str, sympy.Expr]] = []
        _name_places(matmul, printer)
        printer.reduce, printer.store_result, printer.for_half = self._reduce, self._store, False
        printer.replay(reduction.body)

    @property
    def before(self) -> list[str]:
        return self._totals.before

    def _reduce(self, kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
        if value.axes != TILE:
            code = f"tl.broadcast_to({value.code}, [YBLOCK, XBLOCK])"
            value = Text(code, value.dtype, TILE)
        return self._totals.reduce(kind, dtype, value)

    def _store(self, result: ReductionResult, buffer: str, index: sympy.Expr) -> None:
        self._stored.append((result, buffer, index))

    def print_results(self) -> None:
        """Print what is stored, and what follows."""
        reduction, printer = self._reduction, self._printer
        part = "" if reduction.parts is None else f"row_tile * {reduction.parts.width} + "
        printer.registers |= reduction.replaced.local_names
        printer.tile.names[COLUMN] = "xindex"
        for result, buffer, index in self._stored:
            value, place = self._totals.pending[result.number](), printer.index(index)[0]
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
