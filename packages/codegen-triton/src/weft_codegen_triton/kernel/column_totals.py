"""Sums of columns that a kernel of rows adds up while it goes through a part of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
import torch
from weft_loop_ir import Buffer, Expansion, FusedKernel, Kernel, LoopBody

from weft_codegen_triton.kernel.blocks import extent
from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, Text
from weft_codegen_triton.kernel.dtypes import triton_dtype
from weft_codegen_triton.kernel.frame import program_id
from weft_codegen_triton.kernel.row_space import RowSpace


@dataclass(eq=False)
class ColumnTotals:
    """The sums of the stages from ``first_stage`` on: in each program those of ``part`` rows."""

    printer: BodyPrinter
    part: int
    first_stage: int
    _dtypes: list[torch.dtype] = field(default_factory=list)
    _stored: list[tuple[str, str, sympy.Expr]] = field(default_factory=list)
    _begin: int = 0

    @classmethod
    def of_kernel(cls, kernel: Kernel, printer: BodyPrinter) -> ColumnTotals | None:
        """Those of ``kernel``, if it is of rows and columns."""
        if not isinstance(kernel, RowsAndColumns):
            return None
        return cls(printer, kernel.part, len(kernel.rows.stages))

    def print_before(self) -> None:
        """Note where the loop over rows begins."""
        self._begin = len(self.printer.lines)

    def add(self, body: LoopBody, space: RowSpace) -> None:
        """Print one block of rows of the sums that ``body`` makes."""
        first, names = len(self._dtypes), []

        def reduce(kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
            name, held = f"columns{len(self._dtypes)}", triton_dtype(dtype)
            operand = value.code if value.dtype is dtype else f"{value.code}.to({held})"
            self.printer.emit(f"{name} += {space.where_inside(operand, space.full('0', held))}")
            self._dtypes.append(dtype)
            names.append(name)
            return ReductionResult(len(self._dtypes) - 1)

        def store(result: ReductionResult, buffer: str, index: sympy.Expr) -> None:
            self._stored.append((names[result.number - first], buffer, index))

        self.printer.reduce, self.printer.store_result = reduce, store
        self.printer.replay(body)

    def print_after(self, space: RowSpace) -> None:
        """Print the zeros before the loop, and what the program stores of its part after it."""
        printer, pad = self.printer, "    " * self.printer.indent
        zeros = [
            f"{pad}columns{n} = {space.full('0', triton_dtype(dtype))}"
            for n, dtype in enumerate(self._dtypes)
        ]
        printer.lines[self._begin : self._begin] = zeros
        mask = f"{space.axis}mask"
        for name, buffer, index in self._stored:
            row = f"{program_id(0)} * {printer.number(extent(space.inner))}"
            address = f"{printer.pointers[buffer]} + {row} + {printer.number(index)}"
            printer.emit(f"tl.store({address}, tl.sum({name}, 0)[None, :], {mask})")


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
