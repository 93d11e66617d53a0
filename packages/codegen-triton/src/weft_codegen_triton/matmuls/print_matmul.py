"""Prints a contraction with the loops around it as one Triton function.

A program computes a tile: it adds up matmuls of blocks of both operands in float32, rounds the sums as the
library does, and applies the loops' body to them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import Buffer, FloorDiv, Kernel, SizeFloat, print_index
from weft_loop_ir.bodies import Load
from weft_loop_ir.contractions import BATCH, COLUMN, ROW, TAP, Contraction, Loops

from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.cache_hints import DROP
from weft_codegen_triton.kernel.dtypes import INDEX, literal, loop_bound, pointer_type, triton_dtype
from weft_codegen_triton.kernel.frame import definition, program_id, unrolled
from weft_codegen_triton.kernel.index_bounds import (
    ALWAYS_WIDE,
    Bound,
    Sizes,
    SymbolicIndices,
    body_bounds,
    bounds_of,
)
from weft_codegen_triton.kernel.kernel_printer import (
    Function,
    PrintedKernel,
    pointers_of,
    stores_half,
)
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.precision import Precision
from weft_codegen_triton.matmuls.print_operand import (
    AXES,
    OperandBlock,
    OperandPrinter,
)
from weft_codegen_triton.matmuls.print_reductions import PrintedReduction
from weft_codegen_triton.matmuls.tiles import LONG_ROW, static
from weft_codegen_triton.matmuls.words import WORD_BYTES, Parts, parts_of

ROWS_OF_TILES = 8
"""Tiles that follow each other down a column, so that neighbours in time read the same blocks."""


def print_matmul(
    matmul: MatmulKernel,
    buffers: Mapping[str, Buffer],
    precision: Precision,
    indices: SymbolicIndices = ALWAYS_WIDE,
) -> PrintedKernel:
    """The function of ``matmul``; ``precision`` is that of matmuls of float32.

    ``indices``: how wide those are that only sizes bound.
    """
    return _MatmulPrinter(matmul, buffers, precision, indices).print()


class _MatmulPrinter:
    def __init__(
        self,
        matmul: MatmulKernel,
        buffers: Mapping[str, Buffer],
        precision: Precision,
        indices: SymbolicIndices,
    ) -> None:
        self.matmul = matmul
        self.contraction = matmul.contraction
        self.buffers = buffers
        self.precision = precision.of(self.contraction)
        self.pointers: Mapping[str, str] = pointers_of(matmul)
        self.names = tuple(self.pointers)
        self.width = indices.width(self._bounds(indices.counters))
        self.wide = self.width.wide
        self.is_row = matmul.tile.is_row
        self.splits = matmul.tile.splits
        self.right_policy = DROP if _passes_through(matmul) else ""
        parts = parts_of(self.contraction) if self.is_row or self.splits else Parts()
        self.parts = Parts() if matmul.tile.step % parts.count else parts
        self.scalars: dict[SizeFloat, str] = {}
        self.count = 0  # of values with numbers for names
        self.lines: list[str] = []
        self.uses_assert = False

    def print(self) -> PrintedKernel:
        shape = self.matmul.tile
        self._emit(
            f"YBLOCK: tl.constexpr = {shape.rows}",
            f"XBLOCK: tl.constexpr = {shape.columns}",
            f"KBLOCK: tl.constexpr = {shape.step // self.parts.count}",
        )
        if self.splits:
            self._emit(f"SPLITS: tl.constexpr = {self.splits}")
        self._print_place()
        tile = Tile(("y", "x"), "[YBLOCK, XBLOCK]", "[1, 1]")
        loops = self.body_printer(tile, self._registers)
        begin = len(self.lines)
        self._print_rows()
        if self.is_row:  # what its epilogue reads is on its way while sums are made
            self._print_indices(loops)
            self._load_ahead(loops)
        self._print_sums()
        if not self.is_row:
            self._print_indices(loops)
        self._print_biases_and_round()
        self._print_loops(loops)
        self._print_reductions(loops, begin)
        symbols = self._symbols()
        parameters = [(self.pointers[n], pointer_type(self._dtype_of(n))) for n in self.names]
        parameters += [(symbol.name, self.width.of_sizes) for symbol in symbols]
        parameters += [(name, "i64") for name in self.scalars.values()]
        function = Function(
            definition((name for name, _ in parameters), self.lines),
            tuple(parameters),
            (),
            shape.warps,
            self.uses_assert,
            stages=shape.stages,
        )
        return PrintedKernel(
            function,
            self.names,
            (),
            symbols,
            tuple(self.scalars),
            (self._programs(),),
            (1,),
            self.width.bounds,
        )

    def _emit(self, *lines: str) -> None:
        self.lines += ["    " + line for line in lines]

    def _dtype_of(self, name: str) -> torch.dtype:
        return self.buffers[name].layout.dtype

    def _size(self, expression: sympy.Expr) -> str:
        return print_index(expression, INDEX)

    # -- where a program's tile is ------------------------------------------------------------------------

    def _tiles(self) -> tuple[sympy.Expr, sympy.Expr]:
        """How many tiles cover the rows, and the columns."""
        tile, contraction = self.matmul.tile, self.contraction
        rows = _ceiling(contraction.rows, self.matmul.rows_of_program)
        if contraction.groups is not None:
            rows = rows + contraction.groups.count  # each group may end within a tile
        return rows, _ceiling(contraction.columns, tile.columns)

    def _programs(self) -> sympy.Expr:
        rows, columns = self._tiles()
        return sympy.expand(self.contraction.batch * rows * columns)

    def _print_place(self) -> None:
        """The lines that tell the tile's ``batch``, its places ``x``, and the ``row_tile`` that it is of."""
        rows, columns = (self._size(count) for count in self._tiles())
        number = program_id(0) + (".to(tl.int64)" if self.wide else "")
        has_batch = self.contraction.batch != 1
        if has_batch:
            self._emit(f"number = {number}", f"batch = number // ({rows} * {columns})")
            number = f"number % ({rows} * {columns})"
        self._emit(
            f"number = {number}",
            f"first = number // ({ROWS_OF_TILES} * {columns}) * {ROWS_OF_TILES}",
            f"members = tl.minimum({rows} - first, {ROWS_OF_TILES})",
            f"place = number % ({ROWS_OF_TILES} * {columns})",
            "row_tile = first + place % members",
            "x = place // members * XBLOCK + tl.arange(0, XBLOCK)",
        )

    def _print_rows(self) -> None:
        """The lines that tell the tile's places ``y``."""
        if self.contraction.groups is not None:
            self._print_group()
        elif self.matmul.repeats == 1:
            self._emit("y = row_tile * YBLOCK + tl.arange(0, YBLOCK)")
        else:
            first = f"(row_tile * {self.matmul.repeats} + tile) * YBLOCK"
            self._emit(f"y = {first} + tl.arange(0, YBLOCK)", "yoffset = tile * YBLOCK")

    def _print_group(self) -> None:
        """The lines that find the group that the tile is of: ``batch``, its rows ``y`` and their end."""
        groups = self.contraction.groups
        assert groups is not None
        ends = f"{self.pointers[groups.buffer]} + {groups.offset}"
        self._emit(
            "begin, tiles, batch, top, bottom = 0, 0, 0, 0, 0",
            f"for group in range({groups.count}):",
            f"    end = tl.load({ends} + group * {groups.step})",
            "    more = (end - begin + YBLOCK - 1) // YBLOCK",
            "    is_here = (row_tile >= tiles) & (row_tile < tiles + more)",
            "    batch = tl.where(is_here, group, batch)",
            "    top = tl.where(is_here, begin + (row_tile - tiles) * YBLOCK, top)",
            "    bottom = tl.where(is_here, end, bottom)",
            "    tiles += more",
            "    begin = end",
            "y = top + tl.arange(0, YBLOCK)",
        )

    # -- sums ---------------------------------------------------------------------------------------------

    def _wrapped(self, axis: str, extent: sympy.Expr, block: int) -> str:
        """A place along an axis that is inside, so that loads there need no mask."""
        is_aligned = axis == "x" or self.contraction.groups is None
        if is_aligned and extent.is_Integer and int(extent) % block == 0:
            return axis
        return f"({axis} % {self._size(extent)})"

    def _print_sums(self) -> None:
        """The lines that leave the sums in ``sums``, and those of others in ``sums1`` and so on."""
        lefts, rights = self._operands()
        left = lefts[""]
        places = "tl.arange(0, KBLOCK)"
        if self.splits:
            each = self._size(self.contraction.inner / self.parts.count / self.splits)
            self._emit(f"rowmask = y[None, :, None] < {self._size(self.contraction.rows)}")
            self._emit(f"split = (tl.arange(0, SPLITS) * {each})[:, None]")
            places = f"split + {places}[None, :]"
        self._emit(f"k = {places}", *left.hoisted("left"))
        for suffix, right in rights.items():
            self._emit(*right.hoisted(f"right{suffix}"))
        shape = "KBLOCK, XBLOCK" if self.is_row else "YBLOCK, XBLOCK"
        shape = f"SPLITS, {shape}" if self.splits else shape
        every = [f"sums{suffix}{row}" for suffix in rights for row in lefts]
        self._emit(*(f"{sums} = tl.zeros([{shape}], dtype=tl.float32)" for sums in every))
        self._emit(*self._loop_heads())
        for part in range(self.parts.count):
            lines, added = [], []
            for suffix, right in rights.items():
                block, exponent = right.lines(f"right{suffix}", f"b{suffix}", part)
                lines += block
                added.append((right, suffix, exponent))
            for name, one_row in lefts.items():
                row, _ = one_row.lines("left", f"a{name}", part)
                lines = row + lines if left.factor is None else lines + row  # slow loads first
            self.lines += ["        " + line for line in lines]
            for one, row_name in itertools.product(added, lefts):
                self.lines += ["        " + line for line in self._added(*one, part, row_name)]
        if self.is_row:
            self._emit(*(f"{sums} = tl.sum({sums}, 0)[None, :]" for sums in every))
            for suffix, row_name in itertools.product(rights, [*lefts][1:]):
                is_here = f"y[:, None] < {row_name[1:]}"
                sums = f"sums{suffix}"
                self._emit(f"{sums} = tl.where({is_here}, {sums}, {sums}{row_name})")
        elif self.splits:
            self._emit(*(f"sums{suffix} = tl.sum(sums{suffix}, 0)" for suffix in rights))
        self._emit(*left.lines_of_factor("factor"))
        if left.factor is not None:
            self._emit(*(f"sums{suffix} *= factor" for suffix in rights))

    def _added(
        self, right: OperandPrinter, suffix: str, exponent: int, part: int, row: str
    ) -> list[str]:
        """The lines that add what a part of the right operand gives to the sums of a row, or of all.

        That is too large by the ``exponent`` of two.  Where all of a word is multiplied by the same, the sum
        over it is.
        """
        sums, block = f"sums{suffix}{row}", f"b{suffix}"
        product = _product(f"a{row}", block, exponent)
        if not right.common:
            if self.contraction.by_channel or self.is_row:
                return [f"{sums} += {product}"]
            precision = f'input_precision="{self.precision}"'
            return [f"{sums} = tl.dot(a, {block}, {sums}, {precision})"]
        piece, neighbour = divmod(part, self.parts.neighbours)
        ofword = f"word{suffix}{row}"
        lines = [f"{ofword} {'+=' if neighbour else '='} {product}"]
        if self.splits:
            others = ofword if neighbour else f"tl.zeros_like({sums})"
            lines = [f"{ofword} = tl.dot(a, {block}, {others})"]
        if neighbour == self.parts.neighbours - 1:
            lines += [*right.lines_of_factors(ofword, piece), f"{sums} += {ofword}"]
        return lines

    def _loop_heads(self) -> list[str]:
        """The loop over taps and blocks of what is added up."""
        inner, taps = self.contraction.inner, self.contraction.taps
        if self.contraction.by_channel:
            if self.matmul.tile.unrolls:
                return [f"for tap in {unrolled(f'0, {taps}', _root(int(taps)))}:"]
            return [f"for tap in range({loop_bound(self._size(taps))}):"]
        if taps == 1:
            length = loop_bound(self._size(inner / self.parts.count / max(1, self.splits)))
            return [f"for start in range(0, {length}, KBLOCK):"]
        chunks = _ceiling(inner, self.matmul.tile.step)
        count = loop_bound(self._size(sympy.expand(taps * chunks)))
        if chunks == 1:
            return [f"for tap in range({count}):", "    start = 0"]
        return [
            f"for step in range({count}):",
            f"    tap = step // {self._size(chunks)}",
            f"    start = step % {self._size(chunks)} * KBLOCK",
        ]

    def _operands(self) -> tuple[dict[str, OperandPrinter], dict[str, OperandPrinter]]:
        """The printers of left operands, and of right ones, by what the names of each end with.

        There is one left operand, but for rows that are added up one by one.
        """
        tile, contraction = self.matmul.tile, self.contraction
        y = self._wrapped("y", contraction.rows, tile.rows)
        x = self._wrapped("x", contraction.columns, tile.columns)
        names = self.places(f"{y}[:, None]", f"{x}[None, :]")
        if self.splits:
            names = self.places("y[None, :, None]", f"{x}[None, None, :]")
        is_ragged = not (contraction.inner.is_Integer and int(contraction.inner) % tile.step == 0)
        axes: tuple[tuple[str, ...], ...] = ("y", "k"), ("k", "x")
        if contraction.by_channel:
            axes = ("y", "x"), ("y", "x")
        elif self.is_row:
            axes = ("k", "x"), ("k", "x")
        elif self.splits:
            axes = ("s", "y", "k"), ("s", "k", "x")
        is_ragged &= not contraction.by_channel
        whole = not contraction.by_channel and not self.is_row
        mask = "rowmask" if self.splits and contraction.rows != tile.rows else ""
        left, right = (
            OperandBlock(pair, names, is_ragged, whole, self.parts, of_word, mask)
            for pair, of_word in zip(axes, (2 * WORD_BYTES, WORD_BYTES), strict=True)
        )
        rights = {
            str(number or ""): OperandPrinter(self, one.right, right)
            for number, (_, one) in enumerate(self.matmul.all_sums)
        }
        lefts = {"": OperandPrinter(self, contraction.left, left)}
        if self.is_row and tile.rows > 1:
            for row in range(int(contraction.rows)):
                own = replace(left, names={**names, ROW: str(row)})
                lefts[f"_{row}" if row else ""] = OperandPrinter(self, contraction.left, own)
        return lefts, rights

    def _print_biases_and_round(self) -> None:
        """The lines that leave results as the library gives them in ``matmul``, ``matmul1`` and so on."""
        for number, (_, contraction) in enumerate(self.matmul.all_sums):
            suffix = str(number or "")
            self._print_biases(contraction, f"sums{suffix}")
            self._emit(f"matmul{suffix} = sums{suffix}.to({triton_dtype(contraction.dtype)})")

    def _print_biases(self, contraction: Contraction, sums: str) -> None:
        if contraction.scale != 1:
            self._emit(f"{sums} *= {literal(contraction.scale)}")
        names = self.places("yindex", "xindex")
        for bias in contraction.biases:
            address = f"{self.pointers[bias.buffer]} + {print_index(bias.index, INDEX, names)}"
            masks = [m for s, m in ((ROW, "ymask"), (COLUMN, "xmask"))
                     if s in bias.index.free_symbols]  # fmt: skip
            mask = f", {' & '.join(masks)}" if masks else ""
            value = f"tl.load({address}{mask}).to(tl.float32)"
            scale = "" if bias.scale == 1 else f" * {literal(bias.scale)}"
            self._emit(f"{sums} += {value}{scale}")

    def places(self, row: str, column: str) -> dict[sympy.Symbol, str]:
        """What the symbols of places are called."""
        batch = "batch" if self.contraction.batch != 1 or self.contraction.groups else "0"
        return {BATCH: batch, ROW: row, COLUMN: column, TAP: "tap"}

    # -- loops --------------------------------------------------------------------------------------------

    def body_printer(self, tile: Tile, registers: frozenset[str]) -> BodyPrinter:
        """A printer for loops' bodies that shares parameters and numbers with the others."""
        printer = BodyPrinter(tile, self.pointers, self._dtype_of, registers, self.wide)
        printer.scalars = self.scalars
        printer.count = self.count
        return printer

    def finish(self, printer: BodyPrinter) -> list[str]:
        """The lines of a printer that is done."""
        self.count = printer.count
        self.uses_assert |= printer.uses_assert
        return printer.lines

    def _print_indices(self, printer: BodyPrinter) -> None:
        """Where the tile's elements are in the result, and in the loops."""
        contraction, tile = self.contraction, printer.tile
        rows = self._size(contraction.rows) if contraction.groups is None else "bottom"
        self._emit(
            "yindex, xindex = y[:, None], x[None, :]",
            f"ymask, xmask = yindex < {rows}, xindex < {self._size(contraction.columns)}",
        )
        tile.sizes.update({loop.symbol: loop.size for loop in self.matmul.outer})
        tile.masks = {"y": "ymask", "x": "xmask"}
        names = self.places("yindex", "xindex")
        for loop, value in self.matmul.loops:
            tile.names[loop.symbol] = loop.symbol.name
            tile.symbol_axes[loop.symbol] = frozenset(
                AXES[s] for s in value.free_symbols if s in AXES
            )
            self._emit(f"{loop.symbol.name} = {print_index(value, INDEX, names)}")

    def _load_ahead(self, printer: BodyPrinter) -> None:
        """Load what the loops' body reads that they do not write."""
        changed = {*self._registers, *self.matmul.writes}
        for load in self.matmul.stages[0].body.instructions:
            if isinstance(load, Load) and load.buffer not in changed:
                printer.load(load.buffer, load.index)
        self.lines += self.finish(printer)
        printer.lines = []

    def _print_loops(self, printer: BodyPrinter) -> None:
        """The loops' body on the tile."""
        matmul = self.matmul
        printer.count = self.count
        printer.for_half = stores_half(matmul, self._dtype_of)
        body = matmul.stages[0].body
        for number, (sums, _) in enumerate(matmul.all_sums):
            value = Text(f"matmul{number or ''}", self.contraction.dtype, frozenset(("y", "x")))
            for index in {load.index for load in body.loads(sums)}:
                printer.local[sums, printer.index(index)[0]] = value
        printer.replay(body)
        self.lines += self.finish(printer)

    def _print_reductions(self, printer: BodyPrinter, begin: int) -> None:
        """What is reduced of a program's rows: what the loops store is known.

        Where it makes several tiles the lines from ``begin`` on are a loop over them.
        """
        matmul = self.matmul
        printer.lines = []
        reductions = [PrintedReduction(each, matmul, printer) for each in matmul.reductions]
        self.lines += printer.lines
        if matmul.repeats > 1:
            loop = ["    " + line for line in self.lines[begin:]]
            before = [line for reduction in reductions for line in reduction.before]
            del self.lines[begin:]
            self._emit("ybase = tl.arange(0, YBLOCK)[:, None]", *before)
            self._emit(f"for tile in range({matmul.repeats}):")
            self.lines += loop
            columns = self._size(
                self.contraction.columns
            )  # what a loop names is not known after it
            self._emit("xindex = x[None, :]", f"xmask = xindex < {columns}")
        printer.lines = []
        for reduction in reductions:
            reduction.print_results()
        self.lines += self.finish(printer)

    def _symbols(self) -> tuple[sympy.Symbol, ...]:
        """The size symbols that the text mentions, by name."""
        kernels = [s for s in self.matmul.replaces if isinstance(s, Kernel)]
        producers = (o.producer for _, c in self.matmul.all_sums for o in (c.left, c.right))
        kernels += [producer.kernel for producer in producers if producer is not None]
        found = {s for kernel in (self.matmul, *kernels) for s in kernel.free_sizes}
        found.update(s for e in self._indices() for s in e.free_symbols)
        return tuple(sorted(found - set(self.contraction.sizes), key=lambda s: str(s.name)))

    def _indices(self) -> list[sympy.Expr]:
        """The sizes of the contraction, and the indices of what it is computed of."""
        found = [*self.contraction.sizes.values()]
        for _, contraction in self.matmul.all_sums:
            found += (a.index for a in contraction.biases)
            for operand in (contraction.left, contraction.right):
                found += [operand.index, *(e for pair in operand.inside for e in pair)]
        return found

    @property
    def _registers(self) -> frozenset[str]:
        """The names of sums, and of what only reductions read, which are no memory."""
        return frozenset((*(name for name, _ in self.matmul.all_sums), *self.matmul.dropped))

    def _bounds(self, counters: Sizes) -> list[Bound]:
        """The bounds of all indices."""
        matmul = self.matmul
        sizes = {**counters, **self.contraction.sizes}
        found = bounds_of((*self._indices(), *self._symbols(), self._programs()), sizes)
        found += _loop_bounds(matmul, matmul.loops, self._registers, sizes)
        for operand in (o for _, c in matmul.all_sums for o in (c.left, c.right)):
            if operand.producer is not None:
                kernel = operand.producer.kernel
                computed = frozenset((*kernel.writes, *kernel.local_names))
                found += _loop_bounds(kernel, operand.producer.loops, computed, sizes)
        for reduction in matmul.reductions:
            found += body_bounds(reduction.body, sizes, self._registers)
        return found


def _passes_through(matmul: MatmulKernel) -> bool:
    """Whether the second-level cache can't hold the right operand: the row is to stay in the first."""
    contraction = matmul.contraction
    elements = static(contraction.columns) * static(contraction.inner)
    is_long = matmul.tile == LONG_ROW
    return is_long and elements * contraction.dtype.itemsize > matmul.gpu.l2_bytes


def _product(left: str, block: str, exponent: int) -> str:
    """The left operand's block times the right one's, which is too large by a power of two."""
    row = f"({left}.to(tl.float32) * {2.0**-exponent})" if exponent else f"{left}.to(tl.float32)"
    return f"{row} * {block}.to(tl.float32)"


def _loop_bounds(
    kernel: Kernel, loops: Loops, registers: frozenset[str], sizes: Sizes
) -> list[Bound]:
    """The bounds of what a kernel's loops compute whose values are ``loops``."""
    found = bounds_of((value for _, value in loops), sizes)
    known = {**sizes, **{loop.symbol: loop.size for loop in kernel.all_loops}}
    return found + [b for body in kernel.bodies for b in body_bounds(body, known, registers)]


def _ceiling(size: sympy.Expr, block: int) -> sympy.Expr:
    """How many blocks of ``block`` cover ``size``."""
    return FloorDiv(size + block - 1, sympy.Integer(block))


def _root(taps: int) -> int:
    """How many taps of a window are written out: those of a row, where it is square, else all."""
    root = math.isqrt(taps)
    return root if root * root == taps else taps
