"""Prints attention of few rows, whose keys several programs share: each goes through a part of them.

A program leaves the sums of its part, with the largest score and the total that they are relative to, in
memory, and counts itself.  The one that is last of a matrix's joins the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch
from weft_loop_ir import AttentionKernel, Buffer

from weft_codegen_triton.attention.few_queries import tile_of_parts
from weft_codegen_triton.attention.functions import AttentionTile, Grid, depth_of, padded, within
from weft_codegen_triton.attention.print_attention import AttentionPrinter
from weft_codegen_triton.attention.print_prologues import RowStores
from weft_codegen_triton.attention.seen_blocks import key_range
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import power_of_two
from weft_codegen_triton.kernel.dtypes import loop_bound
from weft_codegen_triton.kernel.frame import program_id
from weft_codegen_triton.kernel.index_bounds import SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel, Scratch
from weft_codegen_triton.options import INT32_SAFE

JOINED_A_THREAD = 128
"""Elements of parts that are joined at once."""


def print_split(
    attention: AttentionKernel,
    buffers: Mapping[str, Buffer],
    indices: SymbolicIndices,
    parts: int,
    gpu: Gpu,
) -> PrintedKernel:
    """The function of ``attention`` with as many ``parts`` of keys, a power of two."""
    tile = tile_of_parts(attention, parts, gpu)
    return _SplitPrinter(attention, buffers, indices, parts).print([tile])


class _SplitPrinter(AttentionPrinter):
    loads_values_first = True

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
        self.part_rows = int(self.batches) * parts * int(self.queries)  # rows of parts

    def print(self, tiles: Sequence[AttentionTile]) -> PrintedKernel:
        """In the one of ``tiles``."""
        (first,) = tiles
        self.begin_rows()
        new_rows = RowStores(self, self.attention)
        start, stop = key_range(self, self.attention.bounds)
        all_keys = f"{self.parts} * XBLOCK"
        self.emit(
            f"begin, stop = {start}, {stop}",
            f"part_keys = tl.maximum(stop - begin + {all_keys} - 1, 0) // ({all_keys}) * XBLOCK"
            if self.attention.stored
            else f"part_keys = (stop - begin + {all_keys} - 1) // ({all_keys}) * XBLOCK",
            "begin = begin + part * part_keys",
            "stop = tl.minimum(begin + part_keys, stop)",
        )
        if self.attention.stored:
            self.emit(
                "own_first = tl.where(part == 0, 0, begin)",
                f"own_end = tl.where(part == {self.parts - 1}, {INT32_SAFE}, begin + part_keys)",
            )
            new_rows.store()
        steps = f"{loop_bound('begin')}, {loop_bound('stop')}, XBLOCK"
        with self.loop(f"for start in range({steps}):"):
            self.print_step()
        self._keep()
        with self.loop(f"if arrived == {self.parts - 1}:"):
            self._join(first)
        parts = Scratch("parts", torch.float32, sympy.Integer(self.part_rows * (self.width + 2)))
        grid = Grid((sympy.Integer(self.parts), self.batches), (1, 1), ())
        return self.printed(tiles, grid, (), (parts,))

    def begin(self, block: str, widths: Iterable[sympy.Expr], matrix: str = "batch") -> None:
        """The matrix of a program, its part, and positions within rows of ``widths``."""
        cast = self.cast
        self.emit(
            f"{matrix} = {program_id(1)}{cast}",
            f"part = {program_id(0)}{cast}",
            "first = 0",
            *(f"depth{n} = tl.arange(0, {n})" for n in sorted(set(map(padded, widths)))),
        )

    def _keep(self) -> None:
        """Store what is known of the part, and count the program."""
        counters, width = self.pointers[str(self.attention.counters)], self.width
        self.emit(
            f"row = (batch * {self.parts} + part) * {self.query_count} + yindex",
            f"tl.store(parts_ptr + row * {width} + depth{width}[None, :], sums, ymask)",
            f"tl.store(parts_ptr + {self.part_rows * width} + row, largest, ymask)",
            f"tl.store(parts_ptr + {self.part_rows * (width + 1)} + row, total, ymask)",
            "tl.debug_barrier()",
            f'arrived = tl.atomic_add({counters} + batch, 1, sem="acq_rel", scope="gpu")',
        )

    def _join(self, first: AttentionTile) -> None:
        """Join the parts of all rows, some of these at a time."""
        attention, width = self.attention, self.width
        columns = attention.value.size[2]
        held = JOINED_A_THREAD * 32 * first.warps // (self.parts * width)
        rows = min(power_of_two(int(self.queries)), 1 << max(held, 1).bit_length() - 1)
        depth = depth_of(columns, "[None, :]")
        self.emit(f"each = tl.arange(0, {self.parts})[:, None]")
        with self.loop(f"for top in range(0, {self.query_count}, {rows}):"):
            self.emit(
                f"line = top + tl.arange(0, {rows})",
                f"is_line = line[None, :] < {self.query_count}",
                f"place = (batch * {self.parts} + each) * {self.query_count} + line[None, :]",
                f"highest = tl.load(parts_ptr + {self.part_rows * width} + place, is_line, other=0.0)",
                f"totals = tl.load(parts_ptr + {self.part_rows * (width + 1)} + place, is_line, other=0.0)",
                f"many = tl.load(parts_ptr + place[:, :, None] * {width} + depth{width}[None, None, :], "
                "is_line[:, :, None], other=0.0)",
                "top_score = tl.max(highest, 0)",
                'top_score = tl.where(top_score == float("-inf"), 0.0, top_score)',
                "scales = tl.exp(highest - top_score[None, :])",
                "divisor = tl.sum(totals * scales, 0)[:, None]",
                "joined = tl.sum(many * scales[:, :, None], 0)",
                "joined = tl.where(divisor == 0.0, 0.0, joined / divisor)",
                f"line_mask = line[:, None] < {self.query_count}",
            )
            where = self.place(attention.out, "line[:, None]", depth)
            self.store_elements(
                attention.out.buffer, where, "joined", within("line_mask", depth, columns)
            )
        self.emit(f"tl.store({self.pointers[str(attention.counters)]} + batch, 0)")
