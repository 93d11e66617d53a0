"""What kernels of attention have in common: a tile of scores, by rows and keys, and what is done to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

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

from weft_codegen_triton.attention.narrow_positions import with_narrow_positions
from weft_codegen_triton.kernel.blocks import GRID_LIMIT, power_of_two
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import pointer_type
from weft_codegen_triton.kernel.expressions import INDEX
from weft_codegen_triton.kernel.index_bounds import Bound, SymbolicIndices, body_bounds, bounds_of
from weft_codegen_triton.kernel.kernel_printer import pointers_of

MIN_SIDE = 16
"""Of a block that tensor cores multiply."""
WHOLE = 128
"""A multiple of the sides of every tile."""


LOG2_E = 1.4426950408889634
MAX_EXPONENT = 1 << 17
"""The magnitude of scores up to which sums with the logarithm of a few keep 1% of that, in float32."""


class _ScorePrinter(BodyPrinter):
    """Prints what is done to scores, whose absolute errors alone matter: they are exponents."""

    def __init__(
        self,
        tile: Tile,
        pointers: Mapping[str, str],
        dtypes: Callable[[str], torch.dtype],
        scores: frozenset[str],
        wide: bool,
    ) -> None:
        super().__init__(tile, pointers, dtypes, scores, wide)
        self.scales_exponents = False
        self.differences: dict[str, tuple[Text, Text]] = {}  # from a number of a row

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


class ScoreTile:
    """Prints into ``printer`` at a tile ``[YBLOCK, XBLOCK]`` of the matrix ``batch``: ``yindex``, ``xindex``.

    ``bodies`` compute elements from ``scores``, the names of matmuls; ``operands`` are all matrices that the
    kernel reads or writes, ``half``: with 16 bits.  ``indices``: how wide those are that only sizes bound.
    ``turned``: the tile is ``[XBLOCK, YBLOCK]``.
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
        self.pointers = pointers_of(kernel)
        self.names = tuple(self.pointers)
        self.batches, self.queries = kernel.score_rows.batches, kernel.score_rows.queries
        self.keys = kernel.key_loop.size
        self.loops = {loop.symbol: loop.size for loop in (*kernel.outer, kernel.key_loop)}
        self.sizes = {**indices.counters, **self.loops}
        self.bodies = tuple(bodies)
        self.parts: tuple[Kernel, ...] = ()
        self.producers: tuple[Kernel, ...] = ()
        if isinstance(kernel, AttentionKernel):
            self.producers, self.parts = kernel.producers, (*kernel.producers, *kernel.stored)
        self.width = indices.width(self._bounds())
        self.wide = self.width.wide
        if not self.wide:
            self.bodies = tuple(with_narrow_positions(body, self.sizes) for body in bodies)
        self.scales_exponents = half and not any(map(self._may_be_lowest, self.bodies))
        self.printer = self._body_printer(half)

    def emit(self, *lines: str) -> None:
        for line in lines:
            self.printer.emit(line)

    # -- the function ------------------------------------------------------------------------------------

    @property
    def batch_axis(self) -> int:
        """The axis of the grid that counts matrices."""
        return int(self.batches.is_Integer and int(self.batches) <= GRID_LIMIT)

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types, to be asked for last."""
        found = [(self.pointers[n], pointer_type(self.buffers[n].layout.dtype)) for n in self.names]
        found += [(s.name, self.width.of_sizes) for s in self.symbols()]
        found += [(name, "i64") for name in self.printer.scalars.values()]
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
        for part in self.parts:
            found.update(part.free_sizes)
        bound = {MatrixOperand.batch, *self.loops}
        return tuple(sorted(found - bound, key=lambda s: str(s.name)))

    def producer(self, operand: MatrixOperand) -> Kernel | None:
        """What computes ``operand``; None where it is loaded."""
        made = (kernel for kernel in self.producers if kernel.writes == (operand.buffer,))
        return next(made, None)

    # -- matrices ----------------------------------------------------------------------------------------

    def place(self, operand: MatrixOperand, row: str | None, column: str | None) -> str:
        """Where the elements of the matrix ``batch`` are, at ``row`` and ``column`` where these are given."""
        names = {MatrixOperand.batch: "batch" if self.wide else "batch.to(tl.int64)"}
        parts = [self.pointers[operand.buffer], print_index(operand.base, INDEX, names)]
        for index, step in zip((row, column), operand.steps, strict=True):
            if index is not None:
                parts.append(f"{index} * {print_index(step, INDEX)}")
        return " + ".join(parts)

    def load(self, operand: MatrixOperand, row: str, column: str, mask: str) -> str:
        """The block of ``operand`` at ``row`` and ``column``; ``mask`` may be empty."""
        return f"tl.load({self.place(operand, row, column)}{masked(mask)})"

    def is_whole(self, extent: sympy.Expr) -> bool:
        """Whether blocks of every tile divide ``extent``."""
        return bool(extent.is_Integer and int(extent) % WHOLE == 0)

    # -- the body ----------------------------------------------------------------------------------------

    def name_loops(self, of_rows: bool, of_batches: bool) -> None:
        """Print the loops' variables from the matrix and its row; those of one or both kinds."""
        score_rows, tile = self.kernel.score_rows, self.printer.tile
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
        self.emit(f"x = {first} + tl.arange(0, XBLOCK){self.printer.cast}", f"xindex = x{row}")
        if self.is_whole(self.keys):
            self.printer.tile.masks.pop("x", None)
        else:
            self.emit(f"xmask = xindex < {print_index(self.keys, INDEX)}")
        self.name_key()

    def name_key(self) -> None:
        """Let the loop over keys be the tile's columns."""
        symbol, tile = self.kernel.key_loop.symbol, self.printer.tile
        tile.names[symbol], tile.symbol_axes[symbol] = "xindex", frozenset("x")

    def print_invariant(self, varying: Collection[sympy.Symbol]) -> None:
        """Print what is the same for all values of ``varying``: printed before a loop, it is not repeated."""
        for body in self.bodies:
            self.printer.replay(_invariant(body, self.scores, varying))

    def print_elements(self, codes: Mapping[str, str]) -> list[str]:
        """The elements that the bodies compute, where ``codes`` holds the tiles of scores, in float32."""
        for body in self.bodies:
            for load in body.loads():
                if load.buffer in self.scores:
                    score = Text(codes[load.buffer], torch.float32, frozenset("yx"))
                    self.printer.local[load.buffer, self.printer.index(load.index)[0]] = score
        return [self.printer.replay(body).code for body in self.bodies]

    # -- facts -------------------------------------------------------------------------------------------

    def _body_printer(self, half: bool) -> BodyPrinter:
        axes, shape = ("y", "x"), "[YBLOCK, XBLOCK]"
        if self.turned:
            axes, shape = ("x", "y"), "[XBLOCK, YBLOCK]"
        tile = Tile(axes, shape, "[1, 1]", sizes=self.sizes)
        tile.masks = {"y": "ymask", "x": "xmask"}

        def dtype_of(name: str) -> torch.dtype:
            return self.buffers[name].layout.dtype

        printer = _ScorePrinter(tile, self.pointers, dtype_of, self.scores, wide=self.wide)
        printer.scales_exponents = self.scales_exponents
        printer.for_half = half
        return printer

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
        for part in self.parts:
            written = [sympy.Mul(*self.buffers[name].layout.size) for name in part.writes]
            loops = {loop.symbol: loop.size for loop in part.outer}
            found += bounds_of(written, self.sizes)
            found += body_bounds(part.stages[0].body, {**self.sizes, **loops})
        return found


def padded(width: sympy.Expr) -> int:
    """The side of a block that holds ``width`` elements."""
    return max(MIN_SIDE, power_of_two(int(width)))


def depth_of(width: sympy.Expr, shape: str) -> str:
    """The positions within rows of ``width``."""
    return f"depth{padded(width)}{shape}"


def within(mask: str, index: str, width: sympy.Expr) -> str:
    """``mask`` (which may be empty) and that ``index`` is below ``width``, if that isn't always so."""
    if padded(width) == width:
        return mask
    inside = f"({index} < {int(width)})"
    return f"({mask}) & {inside}" if mask else inside


def masked(mask: str) -> str:
    """The arguments of a load for ``mask``, which may be empty."""
    return f", {mask}, other=0.0" if mask else ""


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
