"""Prints backward of attention as Triton functions: matmuls that are computed from scores.

A program holds a block of rows and goes through the keys, or holds a block of keys and goes through the
rows; it multiplies a tile of scores, computes a tile of each matrix, and multiplies that.  A sum over
matrices goes through the keys and the matrices for a block of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import sympy
from weft_loop_ir import AttentionGradientKernel, Buffer, GradientSum, MatrixOperand, print_index

from weft_codegen_triton.attention.functions import (
    AttentionTile,
    Grid,
    attention_tiles,
    fitting_tiles,
    has_short_rows,
    padded,
    small_tiles,
)
from weft_codegen_triton.attention.score_printer import ScorePrinter
from weft_codegen_triton.attention.seen_blocks import seeing_rows, seen_keys
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.dtypes import INDEX, loop_bound, triton_dtype
from weft_codegen_triton.kernel.index_bounds import SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel

COLUMN_TILES = attention_tiles((64, 64, 4, 2), (32, 64, 4, 4), (64, 128, 8, 3), (32, 128, 8, 3))
"""What is timed by columns, the first without timing; for at most 64 elements of a row those below are."""
NARROW_COLUMN_TILES = attention_tiles(
    (64, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (64, 128, 8, 3)
)
ROW_TILES = attention_tiles((64, 64, 4, 2), (64, 32, 4, 3), (128, 32, 8, 3), (128, 128, 8, 2))
"""The same by rows."""
NARROW_ROW_TILES = attention_tiles((64, 64, 4, 3), (128, 64, 4, 3), (64, 128, 4, 2), (64, 32, 4, 3))
"""Of 64 elements 0.176, 0.203, 0.184 and 0.190."""
WIDE_TILES = attention_tiles((32, 32, 4, 2), (32, 32, 8, 2), (32, 32, 4, 1))
"""For more than 128 elements of a row."""
SUM_TILES = attention_tiles((64, 64, 4, 2), (64, 128, 8, 2))
FLOAT_TILES = attention_tiles((32, 32, 4, 2), (32, 32, 8, 2))
"""In float32, which plain arithmetic multiplies: tensor cores would round."""


def print_gradients(
    kernel: AttentionGradientKernel,
    buffers: Mapping[str, Buffer],
    indices: SymbolicIndices,
    gpu: Gpu,
) -> PrintedKernel:
    """The function of ``kernel``, for the first tile that fits; others are its alternatives.

    ``indices``: how wide those are that only sizes bound.
    """
    tiles = gradient_tiles(kernel, buffers, gpu)
    return _GradientPrinter(kernel, buffers, indices).print(tiles)


def _operands(kernel: AttentionGradientKernel) -> list[MatrixOperand]:
    operands = [o for s in kernel.scores for o in (s.left, s.right)]
    return operands + [o for p in kernel.matmuls for o in (p.other, p.result)]


def _itemsize(kernel: AttentionGradientKernel, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the widest element of an operand."""
    return max(buffers[o.buffer].layout.dtype.itemsize for o in _operands(kernel))


def gradient_tiles(
    kernel: AttentionGradientKernel, buffers: Mapping[str, Buffer], gpu: Gpu
) -> list[AttentionTile]:
    """Those whose blocks ``gpu`` has memory for, the one to take first.

    None where rows of operands have no known, short sizes.
    """
    lefts, others = [s.left for s in kernel.scores], [p.other for p in kernel.matmuls]
    if not has_short_rows([*lefts, *others]):
        return []
    widths = [other.size[2] for other in others]
    is_narrow = all(n <= 64 for n in widths)
    itemsize = _itemsize(kernel, buffers)
    if itemsize > 2:
        tiles = FLOAT_TILES
    elif any(n > 128 for n in widths):
        tiles = WIDE_TILES
    elif kernel.total is not None:
        tiles = SUM_TILES
    elif kernel.by_columns:
        tiles = NARROW_COLUMN_TILES if is_narrow else COLUMN_TILES
    else:
        tiles = NARROW_ROW_TILES if is_narrow else ROW_TILES
    if itemsize == 2 and kernel.total is None:
        tiles = tuple(small_tiles(kernel.score_rows.queries, kernel.key_loop.size)) or tiles
    width = sum(padded(left.size[2]) for left in lefts)

    def bytes_of(tile: AttentionTile) -> int:
        held, moving = tile.queries, tile.keys
        if kernel.by_columns:
            held, moving = moving, held
        return (held + moving * tile.stages) * width * itemsize

    return fitting_tiles(tiles, bytes_of, gpu)


def programs_of_columns(kernel: AttentionGradientKernel, tile: AttentionTile) -> int:
    """How many programs go through the columns of a sum, as many blocks as ``tile`` makes of them.

    No more than a group has matrices: the grid has no more programs along its axis than all matrices.
    """
    keys, count = kernel.key_loop.size, kernel.group.count
    if not (keys.is_Integer and count.is_Integer):
        return 1
    return max(1, min(-(-int(keys) // tile.keys), int(count)))


class _GradientPrinter(ScorePrinter):
    def __init__(
        self,
        kernel: AttentionGradientKernel,
        buffers: Mapping[str, Buffer],
        indices: SymbolicIndices,
    ) -> None:
        super().__init__(
            kernel,
            buffers,
            [score.name for score in kernel.scores],
            kernel.matrices,
            _operands(kernel),
            _itemsize(kernel, buffers) == 2,
            indices,
            turned=kernel.by_columns,
        )
        self.kernel: AttentionGradientKernel = kernel

    def print(self, tiles: Sequence[AttentionTile]) -> PrintedKernel:
        """With the first of ``tiles``, and the others as alternatives."""
        if self.kernel.total is not None:
            grid = self._print_sum(self.kernel.total, tiles[0])
        elif self.kernel.by_columns:
            grid = self._print_columns(tiles[0])
        else:
            grid = self._print_rows(tiles[0])
        return self.printed(tiles, grid, ())

    # -- tiles -------------------------------------------------------------------------------------------

    def _load(self, side: Literal["left", "right"]) -> None:
        """The operands of the scores' matmuls that give their rows, or their columns."""
        index, mask = ("yindex", self.query_mask) if side == "left" else ("xindex", self.key_mask)
        is_turned = self.kernel.by_columns
        block = self.columns if is_turned == (side == "left") else self.rows
        for number, score in enumerate(self.kernel.scores):
            operand = score.left if side == "left" else score.right
            code = block(operand.turned() if is_turned else operand, index, mask)
            self.emit(f"{side}{number} = {code}")

    def _elements(self) -> list[str]:
        """The tiles of the matrices."""
        codes = {}
        for number, score in enumerate(self.kernel.scores):
            factors = (f"left{number}", f"right{number}")
            if self.kernel.by_columns:
                factors = factors[::-1]
            matmul = f'tl.dot({", ".join(factors)}, input_precision="ieee")'
            self.emit(f"score{number} = {matmul}")
            codes[score.name] = f"score{number}"
        return self.print_elements(codes)

    def _begin(self, block: str, matrix: str = "batch") -> None:
        widths = [s.left.size[2] for s in self.kernel.scores]
        self.begin(block, [*widths, *(p.other.size[2] for p in self.kernel.matmuls)], matrix)

    # -- by rows -----------------------------------------------------------------------------------------

    def _print_rows(self, first: AttentionTile) -> Grid:
        kernel = self.kernel
        self._begin("YBLOCK")
        self.name_rows("first")
        self._load("left")
        self._zeros("YBLOCK")
        self.name_loops(of_rows=True, of_batches=True)
        self.print_invariant({kernel.key_loop.symbol})
        with self.loop(f"for start in {seen_keys(self, kernel.bounds, kernel.sight)}:"):
            self.name_keys("start")
            self._load("right")
            self._add("x[:, None]", self.key_mask, self.key_row_mask)
        self._store("yindex", self.query_mask)
        return self.grid_of(self.queries, "YBLOCK", first.queries)

    def _zeros(self, block: str) -> None:
        for number, matmul in enumerate(self.kernel.matmuls):
            width = padded(matmul.other.size[2])
            self.emit(f"sums{number} = tl.zeros([{block}, {width}], dtype=tl.float32)")

    def _known(self, operand: MatrixOperand) -> str | None:
        """The block of ``operand`` that has been loaded to compute scores; None: another is needed."""
        for number, score in enumerate(self.kernel.scores):
            if not self.kernel.by_columns and score.right.turned() == operand:
                return f"tl.trans(right{number})"
            if self.kernel.by_columns and score.left == operand:
                return f"tl.trans(left{number})"
        return None

    def _add(self, row: str, mask: str, row_mask: str) -> None:
        """Add a tile's matmuls to the sums, whose matrices are rounded as they are where they are in memory.

        ``mask`` and ``row_mask`` are those of the tile's elements, and of ``row``, that are added up.
        """
        for number, element in enumerate(self._elements()):
            operand = self.kernel.matmuls[number].other
            other = self._known(operand) or self.rows(operand, row, row_mask)
            seen = f"tl.where({mask}, {element}, 0.0)" if mask else element
            kind = triton_dtype(self.buffers[operand.buffer].layout.dtype)
            dot = f'tl.dot(matrix{number}, {other}, sums{number}, input_precision="ieee")'
            self.emit(f"matrix{number} = ({seen}).to({kind})", f"sums{number} = {dot}")

    def _store(self, row: str, mask: str) -> None:
        for number, matmul in enumerate(self.kernel.matmuls):
            self.store_rows(matmul.result, f"sums{number}", row, mask)

    # -- by columns --------------------------------------------------------------------------------------

    def _print_columns(self, first: AttentionTile) -> Grid:
        kernel = self.kernel
        is_alone = kernel.group.count == 1
        self._begin("XBLOCK", "batch" if is_alone else "kept")
        self.name_keys("first")
        self._zeros("XBLOCK")
        if is_alone:
            self._add_columns()
        else:
            self._name_matrix("0")
            with self._members():
                self._add_columns()
        self._store("x[:, None]", self.key_row_mask)
        return self.grid_of(self.keys, "XBLOCK", first.keys, self._kept)

    def _add_columns(self) -> None:
        """Add the matmuls of one matrix."""
        kernel = self.kernel
        self._load("right")
        self.name_loops(of_rows=False, of_batches=True)
        self.print_invariant(kernel.score_rows.positions)
        with self.loop(f"for start in {seeing_rows(self, kernel.bounds, kernel.sight)}:"):
            self.name_rows("start")
            self._load("left")
            self.name_loops(of_rows=True, of_batches=False)
            self._add("y[:, None]", self.query_mask, self.query_row_mask)

    # -- groups of matrices ------------------------------------------------------------------------------

    @property
    def _kept(self) -> sympy.Expr:
        """How many groups of matrices there are."""
        return sympy.cancel(self.batches / self.kernel.group.count)

    def _name_matrix(self, member: str) -> None:
        """Let ``batch`` be one of the group ``kept``."""
        count, step = (
            print_index(n, INDEX) for n in (self.kernel.group.count, self.kernel.group.step)
        )
        self.emit(f"batch = (kept // {step} * {count} + {member}) * {step} + kept % {step}")

    @contextmanager
    def _members(self) -> Iterator[None]:
        """The loop over the matrices of a group."""
        count = print_index(self.kernel.group.count, INDEX)
        with self.loop(f"for member in range(0, {loop_bound(count)}):"):
            self._name_matrix("member")
            yield

    # -- sums over matrices ------------------------------------------------------------------------------

    def _print_sum(self, total: GradientSum, first: AttentionTile) -> Grid:
        programs = programs_of_columns(self.kernel, first)
        self._begin("YBLOCK", "kept")
        start, step = "0", "XBLOCK"
        if programs > 1:
            self.emit(f"part = kept % {programs}", f"kept = kept // {programs}")
            start, step = loop_bound("part * XBLOCK"), f"{programs} * XBLOCK"
        self.name_rows("first")
        with self.loop(f"for start in range({start}, {loop_bound(self.key_count)}, {step}):"):
            self.name_keys("start")
            self.emit("sums = tl.zeros([YBLOCK, XBLOCK], dtype=tl.float32)")
            with self._members():
                self.name_loops(of_rows=True, of_batches=True)
                self._load("left")
                self._load("right")
                (element,) = self._elements()
                self.emit(f"sums += {element}")
            row = f"(kept.to(tl.int64) * {self.query_count} + yindex) * {self.key_count}"
            place = f"{self.pointers[total.result]} + {row} + xindex"
            mask = " & ".join(filter(None, (self.query_mask, self.key_mask)))
            self.store_elements(total.result, place, "sums", mask)
        return self.grid_of(self.queries, "YBLOCK", first.queries, self._kept * programs)
