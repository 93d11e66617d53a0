"""Prints attention of few rows, whose keys several programs share: each goes through a part of them.

A program leaves the sums of its part, with the largest score and the total that they are relative to, in
memory, and counts itself.  The one that is last of a matrix's joins the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch
from weft_loop_ir import AttentionKernel, Buffer

from weft_codegen_triton.attention.functions import AttentionTile, depth_of
from weft_codegen_triton.attention.print_attention import AttentionPrinter
from weft_codegen_triton.attention.score_tile import padded, within
from weft_codegen_triton.attention.seen_blocks import key_range
from weft_codegen_triton.kernel.expressions import loop_bound
from weft_codegen_triton.kernel.index_bounds import SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, Scratch
from weft_codegen_triton.kernel.templates import definition, program_id

JOINED_A_THREAD = 64
"""Elements of parts that are joined at once."""


def print_split(
    attention: AttentionKernel,
    buffers: Mapping[str, Buffer],
    indices: SymbolicIndices,
    tiles: Sequence[AttentionTile],
    parts: int,
) -> PrintedKernel:
    """The function of ``attention`` with as many ``parts`` of keys, a power of two, in the first of ``tiles``."""
    return _SplitPrinter(attention, buffers, indices, parts).print(tiles)


class _SplitPrinter(AttentionPrinter):
    def __init__(
        self,
        attention: AttentionKernel,
        buffers: Mapping[str, Buffer],
        indices: SymbolicIndices,
        parts: int,
    ) -> None:
        super().__init__(attention, buffers, indices)
        self.parts = parts
        self.width = padded(attention.value.size[2])
        self.count = int(self.tile.batches) * parts * int(self.tile.queries)  # rows of parts

    def print(self, tiles: Sequence[AttentionTile]) -> PrintedKernel:
        """With the first of ``tiles``, and the others as alternatives."""
        tile, first = self.tile, tiles[0]
        self.begin_rows()
        start, stop = key_range(tile, self.attention.bounds)
        tile.emit(
            f"begin, stop = {start}, {stop}",
            f"share = (stop - begin + {self.parts} * XBLOCK - 1) // ({self.parts} * XBLOCK) * XBLOCK",
            "begin = begin + part * share",
            "stop = tl.minimum(begin + share, stop)",
        )
        steps = f"{loop_bound('begin')}, {loop_bound('stop')}, XBLOCK"
        with tile.printer.loop(f"for start in range({steps}):"):
            self.print_step()
        self._keep()
        with tile.printer.loop(f"if arrived == {self.parts - 1}:"):
            self._join(first)
        made = [self._function(one) for one in tiles]
        return PrintedKernel(
            made[0],
            tile.names,
            (Scratch("parts", torch.float32, sympy.Integer(self.count * (self.width + 2))),),
            tile.symbols(),
            tuple(tile.printer.scalars),
            (sympy.Integer(self.parts), tile.batches),
            (1, 1),
            tile.width.bounds,
        )

    def _function(self, one: AttentionTile) -> Function:
        pointers, numbers = self.tile.parameters(), []
        pointers, numbers = pointers[: len(self.tile.names)], pointers[len(self.tile.names) :]
        parameters = (*pointers, ("parts_ptr", "*fp32"), *numbers)
        constants = (("YBLOCK", one.queries), ("XBLOCK", one.keys))
        arguments = [name for name, _ in parameters]
        arguments += [f"{name}: tl.constexpr" for name, _ in constants]
        return Function(
            definition(arguments, self.tile.printer.lines),
            parameters,
            constants,
            one.warps,
            self.tile.printer.uses_assert,
            stages=one.stages,
        )

    def begin(self, block: str, widths: object, matrix: str = "batch") -> None:
        """The matrix of a program, its part, and positions within rows of ``widths``."""
        cast = self.tile.printer.cast
        self.tile.emit(
            f"{matrix} = {program_id(1)}{cast}",
            f"part = {program_id(0)}{cast}",
            "first = 0",
            *(f"depth{n} = tl.arange(0, {n})" for n in sorted(set(map(padded, widths)))),  # type: ignore[call-overload]
        )

    def _keep(self) -> None:
        """Store what is known of the part, and count the program."""
        counters, width = self.tile.pointers[str(self.attention.counters)], self.width
        self.tile.emit(
            f"row = (batch * {self.parts} + part) * {self.queries} + yindex",
            f"tl.store(parts_ptr + row * {width} + depth{width}[None, :], sums, ymask)",
            f"tl.store(parts_ptr + {self.count * width} + row, largest, ymask)",
            f"tl.store(parts_ptr + {self.count * (width + 1)} + row, total, ymask)",
            "tl.debug_barrier()",
            f'arrived = tl.atomic_add({counters} + batch, 1, sem="acq_rel", scope="gpu")',
        )

    def _join(self, first: AttentionTile) -> None:
        """Join the parts of all rows, some of these at a time."""
        attention, tile, width = self.attention, self.tile, self.width
        columns = attention.value.size[2]
        held = JOINED_A_THREAD * 32 * first.warps // (self.parts * width)
        rows = min(first.queries, 1 << max(held, 1).bit_length() - 1)
        depth = depth_of(columns, "[None, :]")
        tile.emit(f"part = tl.arange(0, {self.parts})[:, None]")
        with tile.printer.loop(f"for top in range(0, {self.queries}, {rows}):"):
            tile.emit(
                f"place = top + tl.arange(0, {rows})",
                f"inside = place[None, :] < {self.queries}",
                f"row = (batch * {self.parts} + part) * {self.queries} + place[None, :]",
                f"largest = tl.load(parts_ptr + {self.count * width} + row, inside, other=0.0)",
                f"total = tl.load(parts_ptr + {self.count * (width + 1)} + row, inside, other=0.0)",
                "shift = tl.max(largest, 0)",
                'shift = tl.where(shift == float("-inf"), 0.0, shift)',
                "weight = tl.exp(largest - shift[None, :])",
                "total = tl.sum(total * weight, 0)[:, None]",
                f"sums = tl.load(parts_ptr + row[:, :, None] * {width} + depth{width}[None, None, :], "
                "inside[:, :, None], other=0.0)",
                "sums = tl.sum(sums * weight[:, :, None], 0)",
                "result = tl.where(total == 0.0, 0.0, sums / total)",
            )
            mask = within("inside", depth, columns)
            where = tile.place(attention.out, "place[:, None]", depth)
            tile.emit(f"inside = place[:, None] < {self.queries}")
            self.store_at(attention.out.buffer, where, "result", mask)
        tile.emit(f"tl.store({tile.pointers[str(attention.counters)]} + batch, 0)")
