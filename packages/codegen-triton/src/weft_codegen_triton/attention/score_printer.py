"""What kernels of attention have in common: a tile of scores, by rows and keys, and what is done to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import (
    AttentionGradientKernel,
    AttentionKernel,
    Buffer,
    Kernel,
    LoopBody,
    MatrixOperand,
    print_index,
)
from weft_loop_ir.bodies import Constant, Indirect, Load, Masked, Scalar
from weft_loop_ir.bodies.edit import chosen

from weft_codegen_triton.attention.functions import (
    AttentionTile,
    Grid,
    depth_of,
    masked,
    padded,
    within,
)
from weft_codegen_triton.attention.narrow_positions import with_narrow_positions
from weft_codegen_triton.attention.print_prologues import computed_rows
from weft_codegen_triton.kernel.blocks import GRID_LIMIT
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import INDEX, pointer_type, triton_dtype
from weft_codegen_triton.kernel.frame import definition, program_id
from weft_codegen_triton.kernel.index_bounds import Bound, SymbolicIndices, body_bounds, bounds_of
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, Scratch, pointers_of

WHOLE = 128
"""A multiple of the sides of every tile."""
LOG2_E = 1.4426950408889634
MAX_EXPONENT = 1 << 17
"""The magnitude of scores up to which sums with the logarithm of a few keep 1% of that, in float32."""


class ScorePrinter(BodyPrinter):
    """Prints at a tile ``[YBLOCK, XBLOCK]`` of the matrix ``batch``: ``yindex`` are rows, ``xindex`` keys.

    ``bodies`` compute elements from ``scores``, the names of matmuls; absolute errors alone matter, of
    exponents.  ``operands`` are all matrices that the kernel reads or writes, ``half``: with 16 bits.
    ``indices``: how wide those are that only sizes bound.  ``turned``: the tile is ``[XBLOCK, YBLOCK]``, in a
    kernel by columns: what is multiplied then lies as matmuls leave it.
    """

    def __init__(
        self,
        kernel: AttentionKernel | AttentionGradientKernel,
        buffers: Mapping[str, Buffer],
        scores: Collection[str],
        bodies: Sequence[LoopBody],
        operands: Sequence[MatrixOperand],
        half: bool,
        indices: SymbolicIndices,
        turned: bool = False,
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.scores = frozenset(scores)
        self.operands = operands
        self.turned = turned
        pointers = pointers_of(kernel)
        self.names = tuple(pointers)
        self.batches, self.queries = kernel.score_rows.batches, kernel.score_rows.queries
        self.keys = kernel.key_loop.size
        self.loops = {loop.symbol: loop.size for loop in (*kernel.outer, kernel.key_loop)}
        self.sizes = {**indices.counters, **self.loops}
        self.bodies = tuple(bodies)
        self.prologues: tuple[Kernel, ...] = ()
        self.producers: tuple[Kernel, ...] = ()
        if isinstance(kernel, AttentionKernel):
            self.producers, self.prologues = kernel.producers, (*kernel.producers, *kernel.stored)
        self.index_width = indices.width(self._bounds())
        axes, shape = ("y", "x"), "[YBLOCK, XBLOCK]"
        if turned:
            axes, shape = ("x", "y"), "[XBLOCK, YBLOCK]"
        masks = {"y": "ymask", "x": "xmask"}
        tile = Tile(axes, shape, "[1, 1]", masks, sizes=self.sizes)
        dtypes = {name: buffer.layout.dtype for name, buffer in buffers.items()}
        wide = self.index_width.wide
        super().__init__(tile, pointers, dtypes.__getitem__, self.scores, wide)
        if not wide:
            self.bodies = tuple(with_narrow_positions(body, self.sizes) for body in bodies)
        self.for_half = half
        self.scales_exponents = half and not any(map(self._may_be_lowest, self.bodies))
        self.differences: dict[str, tuple[Text, Text]] = {}  # from a number of a row
        self.query_count, self.key_count = (
            print_index(n, INDEX) for n in (self.queries, self.keys)
        )
        self.query_mask = "" if self.is_whole(self.queries) else "ymask"
        self.key_mask = "" if self.is_whole(self.keys) else "xmask"
        self.query_row_mask = self.query_mask and f"(y[:, None] < {self.query_count})"
        self.key_row_mask = self.key_mask and f"(x[:, None] < {self.key_count})"

    # -- elements ----------------------------------------------------------------------------------------

    def sub(self, left: Text, right: Text) -> Text:
        made: Text = super().sub(left, right)  # type: ignore[misc]
        if made.dtype == torch.float32 and right.axes < made.axes:
            self.differences[made.code] = left, right
        return made

    def exp(self, value: Text) -> Text:
        """The power of e; of a difference from numbers of a row, that of 2 of a fused multiply-add."""
        if not self.for_half or value.code not in self.differences:
            made: Text = super().exp(value)  # type: ignore[misc]
            return made
        left, right = self.differences[value.code]
        if self.scales_exponents and left.code in self.differences:
            left, other = self.differences[left.code]
            axes = right.axes | other.axes
            right = self.name(f"({right.code} + {other.code})", right.dtype, axes)
        scaled = self.name(f"({right.code} * {LOG2_E})", right.dtype, right.axes)
        return self.name(
            f"tl.exp2({left.code} * {LOG2_E} - {scaled.code})", value.dtype, value.axes
        )

    def tanh(self, value: Text) -> Text:
        function = "weft.tanh_of_exponent" if self.for_half else "math.tanh"
        return self.name(f"{function}({value.code})", value.dtype, value.axes)

    def truediv(self, left: Text, right: Text) -> Text:
        if not self.for_half or left.dtype != torch.float32:
            return super().truediv(left, right)
        reciprocal = self.name(f"(1.0 / {right.code})", right.dtype, right.axes)
        return self.name(f"({left.code} * {reciprocal.code})", left.dtype, left.axes | right.axes)

    # -- the function ------------------------------------------------------------------------------------

    @property
    def batch_axis(self) -> int:
        """The axis of the grid that counts matrices."""
        return int(self.batches.is_Integer and int(self.batches) <= GRID_LIMIT)

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types, to be asked for last."""
        found = [(self.pointers[n], pointer_type(self.buffers[n].layout.dtype)) for n in self.names]
        found += [(s.name, self.index_width.of_sizes) for s in self.symbols()]
        found += [(name, "i64") for name in self.scalars.values()]
        return tuple(found)

    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The symbols of sizes that the function mentions, by name."""
        found: set[sympy.Symbol] = set()
        for operand in self.operands:
            for expression in (*operand.size, operand.base, *operand.steps):
                found |= expression.free_symbols
        for digit in self.kernel.score_rows.digits:
            found |= digit.step.free_symbols | digit.loop.size.free_symbols
        for body in self.bodies:
            found |= body.free_symbols - body.bound_symbols
        for part in self.prologues:
            found.update(part.free_sizes)
        bound = {MatrixOperand.batch, *self.loops}
        return tuple(sorted(found - bound, key=lambda s: str(s.name)))

    def producer(self, operand: MatrixOperand) -> Kernel | None:
        """What computes ``operand``; None where it is loaded."""
        made = (kernel for kernel in self.producers if kernel.writes == (operand.buffer,))
        return next(made, None)

    def grid_of(
        self,
        extent: sympy.Expr,
        constant: str,
        block: int,
        batches: sympy.Expr | None = None,
    ) -> Grid:
        """A grid over ``batches`` (all matrices, where that is not given) and blocks of ``extent``."""
        count = self.batches if batches is None else batches
        if self.batch_axis == 1:
            return Grid((extent, count), (block, 1), (constant,))
        return Grid((count, extent), (1, block), ("BATCHES", constant))

    def printed(
        self,
        tiles: Sequence[AttentionTile],
        grid: Grid,
        loop_blocks: tuple[str, ...],
        scratch: tuple[Scratch, ...] = (),
    ) -> PrintedKernel:
        """What has been printed: with the first of ``tiles``, and the others as alternatives."""
        count, given = len(self.names), self.parameters()
        own = tuple((f"{each.name}_ptr", pointer_type(each.dtype)) for each in scratch)
        parameters = (*given[:count], *own, *given[count:])
        made = []
        for one in tiles:
            constants = [("YBLOCK", one.queries), ("XBLOCK", one.keys)]
            if "BATCHES" in grid.constants:
                constants.append(("BATCHES", 1))
            arguments = [name for name, _ in parameters]
            arguments += [f"{name}: tl.constexpr" for name, _ in constants]
            made.append(
                Function(
                    definition(arguments, self.lines),
                    parameters,
                    tuple(constants),
                    one.warps,
                    self.uses_assert,
                    grid.constants,
                    loop_blocks,
                    stages=one.stages,
                )
            )
        return PrintedKernel(
            replace(made[0], alternatives=tuple(made[1:])),
            self.names,
            scratch,
            self.symbols(),
            tuple(self.scalars),
            grid.counts,
            grid.blocks,
            self.index_width.bounds,
        )

    # -- matrices ----------------------------------------------------------------------------------------

    def place(self, operand: MatrixOperand, row: str | None, column: str | None) -> str:
        """Where the elements of the matrix ``batch`` are, at ``row`` and ``column`` where these are given."""
        names = {MatrixOperand.batch: "batch" if self.wide else "batch.to(tl.int64)"}
        parts = [self.pointers[operand.buffer], print_index(operand.base, INDEX, names)]
        for index, step in zip((row, column), operand.steps, strict=True):
            if index is not None:
                parts.append(f"{index} * {print_index(step, INDEX)}")
        return " + ".join(parts)

    def load_block(self, operand: MatrixOperand, row: str, column: str, mask: str) -> str:
        """The block of ``operand`` at ``row`` and ``column``; ``mask`` may be empty."""
        return f"tl.load({self.place(operand, row, column)}{masked(mask)})"

    def is_whole(self, extent: sympy.Expr) -> bool:
        """Whether blocks of every tile divide ``extent``."""
        return bool(extent.is_Integer and int(extent) % WHOLE == 0)

    def begin(self, block: str, widths: Iterable[sympy.Expr], matrix: str = "batch") -> None:
        """The matrix of a program, the ``first`` of its block, and positions within rows of ``widths``."""
        block_axis = 1 - self.batch_axis
        number = program_id(block_axis)
        if not self.turned:  # the last rows may see most keys, the first keys be seen by most rows
            number = f"(tl.num_programs({block_axis}) - 1 - {number})"
        self.emit(
            f"{matrix} = {program_id(self.batch_axis)}{self.cast}",
            f"first = {number}{self.cast} * {block}",
            *(f"depth{n} = tl.arange(0, {n})" for n in sorted(set(map(padded, widths)))),
        )

    def name_rows(self, first: str) -> None:
        """The rows of the tile, from ``first`` on."""
        row = "[None, :]" if self.turned else "[:, None]"
        self.emit(f"y = {first} + tl.arange(0, YBLOCK){self.cast}", f"yindex = y{row}")
        if self.query_mask:
            self.emit(f"ymask = yindex < {self.query_count}")
        else:
            self.tile.masks.pop("y", None)

    def rows(self, operand: MatrixOperand, row: str, mask: str) -> str:
        """A block of rows of ``operand``."""
        producer = self.producer(operand)
        if producer is not None:
            return computed_rows(self, self.buffers, producer, operand)
        depth = depth_of(operand.size[2], "[None, :]")
        return self.load_block(operand, row, depth, within(mask, depth, operand.size[2]))

    def columns(self, operand: MatrixOperand, column: str, mask: str) -> str:
        """A block of columns of ``operand``."""
        depth = depth_of(operand.size[1], "[:, None]")
        return self.load_block(operand, depth, column, within(mask, depth, operand.size[1]))

    def store_rows(self, result: MatrixOperand, code: str, row: str, mask: str) -> None:
        """Store a block of rows of ``result``."""
        width = result.size[2]
        depth = depth_of(width, "[None, :]")
        place = self.place(result, row, depth)
        self.store_elements(result.buffer, place, code, within(mask, depth, width))

    def store_elements(self, buffer: str, place: str, code: str, mask: str) -> None:
        """Store elements of ``buffer``; ``mask`` may be empty."""
        kind = triton_dtype(self.buffers[buffer].layout.dtype)
        self.emit(f"tl.store({place}, {code}.to({kind}){mask and f', {mask}'})")

    # -- the body ----------------------------------------------------------------------------------------

    def name_loops(self, of_rows: bool, of_batches: bool) -> None:
        """Print the loops' variables from the matrix and its row; those of one or both kinds."""
        score_rows, tile = self.kernel.score_rows, self.tile
        for loop in self.kernel.outer:
            if loop.size == 1:
                tile.names[loop.symbol], tile.symbol_axes[loop.symbol] = "0", frozenset()
        for digit in score_rows.digits:
            varies = digit.loop.symbol in score_rows.positions
            if not (of_rows if varies else of_batches):
                continue
            inside = sympy.cancel(digit.step / score_rows.queries)
            if score_rows.query is None:
                row = f"(batch * {print_index(score_rows.queries, INDEX)} + yindex)"
                place, step, extent = row, digit.step, score_rows.batches * score_rows.queries
            elif varies:
                place, step, extent = "yindex", digit.step, score_rows.queries
            else:
                place, step, extent = "batch", inside, score_rows.batches
            code = place if step == 1 else f"{place} // {print_index(step, INDEX)}"
            if sympy.expand(step * digit.loop.size - extent) != 0:
                code = f"({code}) % {print_index(digit.loop.size, INDEX)}"
            name = digit.loop.symbol.name
            self.emit(f"{name} = {code}")
            tile.names[digit.loop.symbol] = name
            tile.symbol_axes[digit.loop.symbol] = frozenset("y") if varies else frozenset()

    def name_keys(self, first: str) -> None:
        """The keys of the tile, from ``first`` on."""
        row = "[:, None]" if self.turned else "[None, :]"
        self.emit(f"x = {first} + tl.arange(0, XBLOCK){self.cast}", f"xindex = x{row}")
        if self.is_whole(self.keys):
            self.tile.masks.pop("x", None)
        else:
            self.emit(f"xmask = xindex < {print_index(self.keys, INDEX)}")
        self.name_key()

    def name_key(self) -> None:
        """Let the loop over keys be the tile's columns."""
        symbol, tile = self.kernel.key_loop.symbol, self.tile
        tile.names[symbol], tile.symbol_axes[symbol] = "xindex", frozenset("x")

    def print_invariant(self, varying: Collection[sympy.Symbol]) -> None:
        """Print what is the same for all values of ``varying``: printed before a loop, it is not repeated."""
        for body in self.bodies:
            self.replay(_invariant(body, self.scores, varying))

    def print_elements(self, codes: Mapping[str, str]) -> list[str]:
        """The elements that the bodies compute, where ``codes`` holds the tiles of scores, in float32."""
        for body in self.bodies:
            for load in body.loads():
                if load.buffer in self.scores:
                    score = Text(codes[load.buffer], torch.float32, frozenset("yx"))
                    self.local[load.buffer, self.index(load.index)[0]] = score
        return [self.replay(body).code for body in self.bodies]

    # -- facts -------------------------------------------------------------------------------------------

    def _may_be_lowest(self, body: LoopBody) -> bool:
        """Whether all scores of a row may be so low that sums with their logarithm would lose that.

        ``LOG2_E`` times the lowest number is infinite.
        """
        varying = body.bound_symbols | {self.kernel.key_loop.symbol}
        added = [
            load
            for load in body.loads()
            if load.buffer not in self.scores and not varying.isdisjoint(load.index.free_symbols)
        ]
        numbers = [i.number for i in body.instructions if isinstance(i, Constant)]
        return (
            body.holds(Masked, Scalar)
            or any(MAX_EXPONENT < abs(number) < float("inf") for number in numbers)
            or any(self.buffers[load.buffer].layout.dtype.is_floating_point for load in added)
        )

    def _bounds(self) -> list[Bound]:
        """The bounds of places within a matrix, and of indices of what is done to scores.

        Where a matrix begins is computed in 64 bits.
        """
        places = [self.batches * self.queries, *self.symbols()]
        for operand in self.operands:
            places.append(operand.base)
            places += [n * step for n, step in zip(operand.size[1:], operand.steps, strict=True)]
        for digit in self.kernel.score_rows.digits:
            places += [digit.step, digit.loop.size]
        seen = self.kernel.bounds
        ends = () if seen is None else (seen.first, seen.last)
        places += [self.queries + self.keys + end for end in ends if end is not None]
        found = bounds_of(places, {**self.sizes, MatrixOperand.batch: sympy.S.One})
        for body in self.bodies:
            found += body_bounds(body, self.sizes, self.scores)
        for part in self.prologues:
            written = [sympy.Mul(*self.buffers[name].layout.size) for name in part.writes]
            loops = {loop.symbol: loop.size for loop in part.outer}
            found += bounds_of(written, self.sizes)
            found += body_bounds(part.stages[0].body, {**self.sizes, **loops})
        return found


def _invariant(
    body: LoopBody, scores: Collection[str], varying: Collection[sympy.Symbol]
) -> LoopBody:
    """What ``body`` computes that is the same for all values of ``varying``."""
    kept: set[int] = set()
    changing = body.bound_symbols.union(varying)
    for position, instruction in enumerate(body.instructions):
        varies = not changing.isdisjoint(instruction.free_symbols)
        is_score = isinstance(instruction, Load) and instruction.buffer in scores
        if isinstance(instruction, Indirect | Masked) or varies or is_score:
            continue
        if all(value.index in kept for value in instruction.operands):
            kept.add(position)
    return chosen(body.instructions, kept)
