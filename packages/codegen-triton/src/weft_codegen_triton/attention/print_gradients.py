"""Prints backward of attention as Triton functions: matmuls that are computed from scores.

A program holds a block of lines and goes through the keys, or holds a block of keys and goes through the
lines; it multiplies a tile of scores, computes a tile of each matrix, and multiplies that.  A sum over
matrices goes through the keys and the matrices for a block of lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sympy
from weft_loop_ir import (
    AttentionGradientKernel,
    Buffer,
    GradientMatmul,
    GradientSum,
    MatrixOperand,
    print_index,
)

from weft_codegen_triton.attention.functions import (
    AttentionTile,
    Grid,
    has_short_rows,
    printed_kernel,
    with_batches,
)
from weft_codegen_triton.attention.score_tile import ScoreTile, padded, within
from weft_codegen_triton.attention.seen_blocks import seeing_lines, seen_keys
from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.kernel.dtypes import triton_dtype
from weft_codegen_triton.kernel.expressions import INDEX, loop_bound
from weft_codegen_triton.kernel.index_bounds import ALWAYS_WIDE, SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel
from weft_codegen_triton.kernel.templates import program_id

COLUMN_TILES: tuple[AttentionTile, ...] = (
    AttentionTile(64, 64, 4, 2),
    AttentionTile(32, 64, 4, 4),
    AttentionTile(64, 128, 8, 3),
    AttentionTile(32, 128, 8, 3),
)
"""What is timed by columns, the first without timing; for at most 64 elements of a line those below are.

ms on an H200, float16, 4 x 16 heads of 2048 x 2048 scores, causal ALiBi: of 64 elements the first of these
0.215, of those 0.208 and 0.198; of 128 elements 0.311, 0.357, 0.340 and 0.379.
"""
NARROW_COLUMN_TILES: tuple[AttentionTile, ...] = (
    AttentionTile(64, 64, 4, 3),
    AttentionTile(128, 64, 4, 2),
    AttentionTile(64, 64, 4, 2),
    AttentionTile(64, 128, 8, 3),
)
LINE_TILES: tuple[AttentionTile, ...] = (
    AttentionTile(64, 64, 4, 2),
    AttentionTile(64, 32, 4, 3),
    AttentionTile(128, 32, 8, 3),
    AttentionTile(128, 128, 8, 2),
)
"""The same by lines; of 128 elements 0.276, 0.274, 0.306 and 0.309."""
NARROW_LINE_TILES: tuple[AttentionTile, ...] = (
    AttentionTile(64, 64, 4, 3),
    AttentionTile(128, 64, 4, 3),
    AttentionTile(64, 128, 4, 2),
    AttentionTile(64, 32, 4, 3),
)
"""Of 64 elements 0.176, 0.203, 0.184 and 0.190."""
WIDE_TILES: tuple[AttentionTile, ...] = (
    AttentionTile(32, 32, 4, 2),
    AttentionTile(32, 32, 8, 2),
    AttentionTile(32, 32, 4, 1),
)
"""For more than 128 elements of a line."""
SUM_TILES: tuple[AttentionTile, ...] = (AttentionTile(64, 64, 4, 2), AttentionTile(64, 128, 8, 2))
MIN_TILES: tuple[AttentionTile, ...] = (AttentionTile(32, 32, 4, 1), AttentionTile(16, 16, 4, 1))
"""For devices that have no memory for others."""
FLOAT_TILES: tuple[AttentionTile, ...] = (AttentionTile(32, 32, 4, 2), AttentionTile(32, 32, 8, 2))
"""In float32, which plain arithmetic multiplies: tensor cores would round."""


def has_gradient_template(kernel: AttentionGradientKernel) -> bool:
    """Whether there is a function for ``kernel``: lines of operands have known, short sizes."""
    lefts = [score.left for score in kernel.scores]
    return has_short_rows([*lefts, *(matmul.other for matmul in kernel.matmuls)])


def print_gradients(
    kernel: AttentionGradientKernel,
    buffers: Mapping[str, Buffer],
    indices: SymbolicIndices = ALWAYS_WIDE,
    gpu: Gpu = REFERENCE,
) -> PrintedKernel:
    """The function of ``kernel``, for the first tile that fits; others are its alternatives.

    ``indices``: how wide those are that only sizes bound.
    """
    return _GradientPrinter(kernel, buffers, indices, gpu).print()


class _GradientPrinter:
    def __init__(
        self,
        kernel: AttentionGradientKernel,
        buffers: Mapping[str, Buffer],
        indices: SymbolicIndices,
        gpu: Gpu,
    ) -> None:
        self.kernel = kernel
        self.gpu = gpu
        self.buffers = buffers
        operands = [o for s in kernel.scores for o in (s.left, s.right)]
        operands += [o for p in kernel.matmuls for o in (p.other, p.result)]
        itemsizes = [buffers[o.buffer].layout.dtype.itemsize for o in operands]
        self.itemsize = max(itemsizes)
        self.tile = ScoreTile(
            kernel,
            buffers,
            [score.name for score in kernel.scores],
            kernel.matrices,
            operands,
            self.itemsize == 2,
            indices,
            turned=kernel.by_columns,
        )
        self.queries = print_index(self.tile.queries, INDEX)
        self.keys = print_index(self.tile.keys, INDEX)
        self.line_mask = "" if self.tile.is_whole(self.tile.queries) else "ymask"
        self.key_mask = "" if self.tile.is_whole(self.tile.keys) else "xmask"
        self.key_row_mask = self.key_mask and f"(x[:, None] < {self.keys})"
        self.line_row_mask = self.line_mask and f"(y[:, None] < {self.queries})"
        # keys are rows of the tile in a kernel by columns: what is multiplied then lies as matmuls leave it
        self.line_row = "[None, :]" if kernel.by_columns else "[:, None]"

    def print(self) -> PrintedKernel:
        tiles = self._tiles()
        if self.kernel.total is not None:
            grid = self._print_sum(self.kernel.total, tiles[0])
        elif self.kernel.by_columns:
            grid = self._print_columns(tiles[0])
        else:
            grid = self._print_lines(tiles[0])
        return printed_kernel(self.tile, tiles, grid, ())

    def _tiles(self) -> list[AttentionTile]:
        """Those whose blocks fit, the one to take first."""
        kernel = self.kernel
        widths = [p.other.size[2] for p in kernel.matmuls]
        is_narrow = all(n <= 64 for n in widths)
        if self.itemsize > 2:
            tiles = FLOAT_TILES
        elif any(n > 128 for n in widths):
            tiles = WIDE_TILES
        elif kernel.total is not None:
            tiles = SUM_TILES
        elif kernel.by_columns:
            tiles = NARROW_COLUMN_TILES if is_narrow else COLUMN_TILES
        else:
            tiles = NARROW_LINE_TILES if is_narrow else LINE_TILES
        width = sum(padded(score.left.size[2]) for score in kernel.scores)
        moving = "queries" if kernel.by_columns else "keys"

        def fits(tile: AttentionTile) -> bool:
            moved = getattr(tile, moving) * tile.stages
            held = tile.queries + tile.keys - getattr(tile, moving)
            return bool((moved + held) * width * self.itemsize <= self.gpu.tile_bytes)

        return [t for t in tiles if fits(t)] or [t for t in MIN_TILES if fits(t)][:1] or [tiles[0]]

    # -- tiles -------------------------------------------------------------------------------------------

    def _name_lines(self, first: str) -> None:
        """Lines from ``first`` on."""
        tile = self.tile
        tile.emit(f"y = {first} + tl.arange(0, YBLOCK){tile.cast}")
        tile.emit(f"yindex = y{self.line_row}")
        if tile.is_whole(tile.queries):
            tile.printer.tile.masks.pop("y", None)
        else:
            tile.emit(f"ymask = yindex < {self.queries}")

    def _load_lefts(self) -> None:
        """The operands of the scores' matmuls that give their lines."""
        for number, score in enumerate(self.kernel.scores):
            if self.kernel.by_columns:
                code = self._columns(score.left.turned(), "yindex", self.line_mask)
            else:
                code = self._rows(score.left, "yindex", self.line_mask)
            self.tile.emit(f"left{number} = {code}")

    def _load_rights(self) -> None:
        """The operands of the scores' matmuls that give their columns."""
        for number, score in enumerate(self.kernel.scores):
            if self.kernel.by_columns:
                code = self._rows(score.right.turned(), "xindex", self.key_mask)
            else:
                code = self._columns(score.right, "xindex", self.key_mask)
            self.tile.emit(f"right{number} = {code}")

    def _rows(self, operand: MatrixOperand, row: str, mask: str) -> str:
        """A block of rows of ``operand``."""
        depth = f"depth{padded(operand.size[2])}[None, :]"
        return self.tile.load(operand, row, depth, within(mask, depth, operand.size[2]))

    def _columns(self, operand: MatrixOperand, column: str, mask: str) -> str:
        """A block of columns of ``operand``."""
        depth = f"depth{padded(operand.size[1])}[:, None]"
        return self.tile.load(operand, depth, column, within(mask, depth, operand.size[1]))

    def _elements(self) -> list[str]:
        """The tiles of the matrices."""
        codes = {}
        for number, score in enumerate(self.kernel.scores):
            factors = (f"left{number}", f"right{number}")
            if self.kernel.by_columns:
                factors = factors[::-1]
            matmul = f'tl.dot({", ".join(factors)}, input_precision="ieee")'
            self.tile.emit(f"score{number} = {matmul}")
            codes[score.name] = f"score{number}"
        return self.tile.print_elements(codes)

    def _begin(self, block: str, matrix: str = "batch") -> None:
        """The matrix of a program, the ``first`` of its block, and positions within lines of operands."""
        tile, kernel = self.tile, self.kernel
        block_axis = 1 - tile.batch_axis
        number = program_id(block_axis)
        if (
            not kernel.by_columns
        ):  # the last lines may see most keys, the first keys be seen by most lines
            number = f"(tl.num_programs({block_axis}) - 1 - {number})"
        tile.emit(
            f"{matrix} = {program_id(tile.batch_axis)}{tile.cast}",
            f"first = {number}{tile.cast} * {block}",
        )
        widths = {padded(s.left.size[2]) for s in kernel.scores}
        widths |= {padded(p.other.size[2]) for p in kernel.matmuls}
        tile.emit(*(f"depth{width} = tl.arange(0, {width})" for width in sorted(widths)))

    # -- by lines ----------------------------------------------------------------------------------------

    def _print_lines(self, first: AttentionTile) -> Grid:
        tile, kernel = self.tile, self.kernel
        self._begin("YBLOCK")
        self._name_lines("first")
        self._load_lefts()
        self._zeros("YBLOCK")
        tile.name_loops(of_lines=True, of_batches=True)
        tile.print_invariant({kernel.key_loop.symbol})
        tile.emit(f"for start in {seen_keys(tile, kernel.bounds, kernel.sight)}:")
        tile.printer.indent += 1
        tile.name_keys("start")
        self._load_rights()
        for number, element in enumerate(self._elements()):
            matmul = kernel.matmuls[number]
            other = self._known(matmul.other, of_columns=True)
            if other is None:
                other = self._rows(matmul.other, "x[:, None]", self.key_row_mask)
            self._add(number, _where(self.key_mask, element), other)
        tile.printer.indent -= 1
        for number, matmul in enumerate(kernel.matmuls):
            self._store(number, matmul, "yindex", self.line_mask)
        return with_batches(tile, tile.queries, "YBLOCK", first.queries)

    def _zeros(self, block: str) -> None:
        for number, matmul in enumerate(self.kernel.matmuls):
            width = padded(matmul.other.size[2])
            self.tile.emit(f"sums{number} = tl.zeros([{block}, {width}], dtype=tl.float32)")

    def _known(self, operand: MatrixOperand, of_columns: bool) -> str | None:
        """The block of ``operand`` that has been loaded to compute scores; None: another is needed."""
        for number, score in enumerate(self.kernel.scores):
            if of_columns and score.right.turned() == operand:
                return f"tl.trans(right{number})"
            if not of_columns and score.left == operand:
                return f"tl.trans(left{number})"
        return None

    def _add(self, number: int, element: str, other: str) -> None:
        """Add a matmul to the sums, whose matrix is rounded as it is where it is in memory."""
        buffer = self.kernel.matmuls[number].other.buffer
        kind = triton_dtype(self.buffers[buffer].layout.dtype)
        self.tile.emit(
            f"matrix{number} = ({element}).to({kind})",
            f'sums{number} = tl.dot(matrix{number}, {other}, sums{number}, input_precision="ieee")',
        )

    def _store(self, number: int, matmul: GradientMatmul, row: str, mask: str) -> None:
        width = matmul.other.size[2]
        depth = f"depth{padded(width)}[None, :]"
        place = self.tile.place(matmul.result, row, depth)
        kind = triton_dtype(self.buffers[matmul.result.buffer].layout.dtype)
        mask = within(mask, depth, width)
        self.tile.emit(f"tl.store({place}, sums{number}.to({kind}){_argument(mask)})")

    # -- by columns --------------------------------------------------------------------------------------

    def _print_columns(self, first: AttentionTile) -> Grid:
        tile, kernel = self.tile, self.kernel
        is_alone = kernel.group.count == 1
        self._begin("XBLOCK", "batch" if is_alone else "kept")
        tile.name_keys("first")
        self._zeros("XBLOCK")
        if is_alone:
            self._add_columns()
        else:
            self._name_matrix("0")
            with self._members():
                self._add_columns()
        for number, matmul in enumerate(kernel.matmuls):
            self._store(number, matmul, "x[:, None]", self.key_row_mask)
        return with_batches(tile, tile.keys, "XBLOCK", first.keys, self._kept)

    def _add_columns(self) -> None:
        """Add the matmuls of one matrix."""
        tile, kernel = self.tile, self.kernel
        self._load_rights()
        tile.name_loops(of_lines=False, of_batches=True)
        tile.print_invariant(kernel.lines.positions)
        tile.emit(f"for start in {seeing_lines(tile, kernel.bounds, kernel.sight)}:")
        tile.printer.indent += 1
        self._name_lines("start")
        self._load_lefts()
        tile.name_loops(of_lines=True, of_batches=False)
        for number, element in enumerate(self._elements()):
            matmul = kernel.matmuls[number]
            other = self._known(matmul.other, of_columns=False)
            if other is None:
                other = self._rows(matmul.other, "y[:, None]", self.line_row_mask)
            self._add(number, _where(self.line_mask, element), other)
        tile.printer.indent -= 1

    # -- groups of matrices ------------------------------------------------------------------------------

    @property
    def _kept(self) -> sympy.Expr:
        """How many groups of matrices there are."""
        return sympy.cancel(self.tile.batches / self.kernel.group.count)

    def _name_matrix(self, member: str) -> None:
        """Let ``batch`` be one of the group ``kept``."""
        count, step = (
            print_index(n, INDEX) for n in (self.kernel.group.count, self.kernel.group.step)
        )
        self.tile.emit(f"batch = (kept // {step} * {count} + {member}) * {step} + kept % {step}")

    @contextmanager
    def _members(self) -> Iterator[None]:
        """The loop over the matrices of a group."""
        count = print_index(self.kernel.group.count, INDEX)
        with self.tile.printer.loop(f"for member in range(0, {loop_bound(count)}):"):
            self._name_matrix("member")
            yield

    # -- sums over matrices ------------------------------------------------------------------------------

    def _print_sum(self, total: GradientSum, first: AttentionTile) -> Grid:
        tile = self.tile
        self._begin("YBLOCK", "kept")
        self._name_lines("first")
        tile.emit(f"for start in range(0, {loop_bound(self.keys)}, XBLOCK):")
        tile.printer.indent += 1
        tile.name_keys("start")
        tile.emit("sums = tl.zeros([YBLOCK, XBLOCK], dtype=tl.float32)")
        with self._members():
            tile.name_loops(of_lines=True, of_batches=True)
            self._load_lefts()
            self._load_rights()
            (element,) = self._elements()
            tile.emit(f"sums += {element}")
        kind = triton_dtype(self.buffers[total.result].layout.dtype)
        row = f"(kept.to(tl.int64) * {self.queries} + yindex) * {self.keys}"
        place = f"{tile.pointers[total.result]} + {row} + xindex"
        mask = " & ".join(filter(None, (self.line_mask, self.key_mask)))
        tile.emit(f"tl.store({place}, sums.to({kind}){_argument(mask)})")
        tile.printer.indent -= 1
        return with_batches(tile, tile.queries, "YBLOCK", first.queries, self._kept)


def _where(mask: str, element: str) -> str:
    """``element``, 0 beyond ``mask``, which may be empty."""
    return f"tl.where({mask}, {element}, 0.0)" if mask else element


def _argument(mask: str) -> str:
    """The argument of a store for ``mask``, which may be empty."""
    return f", {mask}" if mask else ""
