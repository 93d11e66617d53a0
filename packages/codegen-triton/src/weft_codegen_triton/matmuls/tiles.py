"""The tiles that a contraction may be computed in, and the one that is taken without timing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
from weft_loop_ir.contractions import Contraction
from weft_loop_ir.guesses import MATMUL_EXTENT, guessed
from weft_loop_ir.ops import HALVES

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.matmuls.words import WORD_BYTES, Parts, is_made_of_words, parts_of

MIN_INSTRUCTION_ROWS = 16
"""Of a tile, so that instructions of matrices have as many: fewer are rows one by one."""


@dataclass(frozen=True)
class TileShape:
    """Rows and columns of a tile, elements of a step along what is added up, warps, steps in flight.

    ``unrolls``: whether a row of taps is written out, for convolutions of each channel by itself.
    ``splits``: in how many parts a program cuts what is added up, for other warps each; 0: none.
    """

    rows: int
    columns: int
    step: int
    warps: int
    stages: int
    unrolls: bool = False
    splits: int = 0

    @property
    def is_row(self) -> bool:
        """Whether rows are multiplied element by element, one after another."""
        return self.rows < MIN_INSTRUCTION_ROWS and self.step > 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """The tile as it is kept on disk."""
        return tuple(int(number) for number in vars(self).values())

    @classmethod
    def of(cls, numbers: Sequence[int]) -> TileShape:
        """The tile that has these ``numbers``."""
        rows, columns, step, warps, stages, unrolls, splits = numbers
        return cls(rows, columns, step, warps, stages, bool(unrolls), splits)

    def shared_bytes(self, itemsize: int, count: int = 1) -> int:
        """What the blocks of operands take that are in flight, of elements of ``itemsize`` bytes.

        ``count``: of right operands, beside one left one.
        """
        return (self.rows + count * self.columns) * self.step * self.stages * itemsize


def _shapes(
    *numbers: tuple[int, int, int, int, int], unrolls: bool = False
) -> tuple[TileShape, ...]:
    return tuple(TileShape(*each, unrolls) for each in numbers)


SQUARE = TileShape(128, 128, 64, 8, 3)
SMALL = TileShape(64, 64, 64, 4, 4)
TALL = TileShape(128, 64, 64, 4, 4)
NARROW = TileShape(128, 32, 64, 4, 4)
"""For few columns of many rows that are reduced."""
LEAST = TileShape(32, 32, 32, 4, 2)
"""What every device has memory for, of 8 bytes an element too."""
TILES = (
    SQUARE,
    SMALL,
    *_shapes((128, 256, 64, 8, 3), (256, 128, 64, 8, 3)),
    TALL,
    *_shapes((64, 128, 64, 4, 4), (128, 128, 32, 4, 4), (32, 64, 64, 4, 5)),
)
FLAT = TileShape(16, 32, 128, 4, 5)
FLAT_TILES = (
    FLAT,
    *_shapes((16, 16, 256, 4, 4), (16, 64, 128, 4, 4), (16, 128, 64, 4, 4), (16, 16, 128, 2, 6)),
)
"""For few rows: one tile high, so that the right operand is read once, by as many programs as can be."""
ROW = TileShape(1, 2, 2048, 8, 1)
ROW_TILES = (
    ROW,
    *_shapes((1, 4, 1024, 8, 1), (1, 4, 512, 4, 1), (1, 16, 128, 4, 1), (1, 64, 32, 4, 1)),
    *_shapes((1, 4, 2048, 4, 1), (1, 16, 512, 4, 1), (1, 64, 128, 4, 1), (1, 64, 16, 4, 1)),
)
"""For one row, of which an instruction would take 16: products element by element, then sums.

The first is for columns of 2048 elements and more, the one of 512 for fewer.  One tile for many sizes lets
matmuls of one row, for which it is, share a launch.
"""
LONG_ROW = TileShape(1, 1, 4096, 8, 1)
"""Of columns of twice as many elements or more, and a row that is not computed, as each column would.

It comes with a hint that the cache need not keep them, without which it gains nothing; shorter columns take
as long as with :data:`ROW`, and longer where a norm's factor is made (docs/decisions/gpu.md has the times).
"""
ROWS_TILES = ((8, 1024, 4), (4, 2048, 4), (16, 512, 4))
"""For up to eight rows times numbers of less than a byte: columns, elements and warps, as for one row.

The first are the fastest but where these are few programs: docs/decisions/gpu.md.
"""
MAX_ROWS, FEW_PROGRAMS = 8, 2
COMPUTED_ROW = TileShape(1, 4, 2048, 4, 1)
"""Where the matrix is computed of numbers of 4 or 8 bits, of which as many bytes are twice the elements."""
WORD_ROWS, WORD_PROGRAMS = ((16, 128), (8, 256)), 5.5
"""Columns and words of such a tile where each multiprocessor has so many programs: few instructions a number.

docs/decisions/gpu.md has the times.
"""
CHANNEL = TileShape(32, 64, 1, 4, 1)
CHANNEL_TILES = (
    CHANNEL,
    *_shapes((8, 128, 1, 4, 1), (64, 64, 1, 8, 1)),
    *_shapes((32, 64, 1, 4, 1), (64, 64, 1, 4, 1), unrolls=True),
    *_shapes((64, 32, 1, 4, 1), (128, 32, 1, 4, 1), unrolls=True),
)
"""Of convolutions of each channel by itself, which have no steps."""

SPLIT_TILES = ((128, 16, 4, 4, 3), (64, 16, 4, 4, 3), (32, 16, 4, 4, 3))
"""For few rows times words of several numbers: columns, words, splits, warps, steps in flight.

Words go through shared memory as they are; a thread unpacks those that instructions of matrices want from it.
Each program reads all rows: wide tiles are for columns that half of the multiprocessors have one of.
"""
SPLIT_BYTES = ((32, 32, 4, 4, 3), (16, 16, 8, 8, 4))
"""The same for numbers of a byte, where columns are too few for tiles that are not split."""
FEW_ROWS = 16
REDUCING_PROGRAMS = 3
"""A multiprocessor's, each of which makes tiles one after another and reduces their rows."""


def static(size: sympy.Expr) -> int:
    """A size, or a guess where it varies."""
    return guessed(size, MATMUL_EXTENT)


def tiles_for(contraction: Contraction, gpu: Gpu, count: int = 1) -> tuple[TileShape, ...]:
    """The tiles to choose from that ``gpu`` has memory for, the one first that is taken untimed.

    ``count``: of contractions that have the left operand and these sizes.
    """
    if contraction.by_channel:
        return CHANNEL_TILES
    rows, columns = static(contraction.rows), static(contraction.columns)
    found: tuple[TileShape, ...]
    if contraction.rows == 1:
        inner = static(contraction.inner)
        found = (*ROW_TILES, LONG_ROW, *FLAT_TILES[:2])
        first = next((t for t in ROW_TILES if t.step <= inner), ROW_TILES[-1])
        if contraction.right.producer is not None and COMPUTED_ROW.step <= inner:
            first = _tile_of_words(contraction, gpu, count) or COMPUTED_ROW
        elif contraction.left.producer is None and 2 * LONG_ROW.step <= inner:
            first = LONG_ROW
    elif rows <= FEW_ROWS:
        of_words = _tiles_of_words(contraction, gpu, count)
        if of_words:
            return of_words
        found, first = FLAT_TILES, FLAT
    else:
        found = TILES
        fills = squares(contraction) >= gpu.many_tiles // 2 and min(rows, columns) > SMALL.rows
        first = SQUARE if fills and static(contraction.inner) > SMALL.step else SMALL
        if columns <= TALL.columns and rows >= gpu.many_tiles * TALL.rows:
            first = TALL
    itemsize = contraction.dtype.itemsize

    def fits(tile: TileShape) -> bool:
        return tile.shared_bytes(itemsize, count) <= gpu.tile_bytes

    fitting = [*filter(fits, (first, SMALL, LEAST))]
    others = [*filter(fits, found)]
    return (fitting[0], *(tile for tile in others if tile is not fitting[0]))


def _tile_of_words(contraction: Contraction, gpu: Gpu, count: int) -> TileShape | None:
    """That for one row times words of several numbers, where columns are many."""
    parts = parts_of(contraction)
    if parts.neighbours < WORD_BYTES:
        return None
    for columns, words in WORD_ROWS:
        step, programs = words * parts.count, static(contraction.columns) * count / columns
        if step <= static(contraction.inner) and programs >= WORD_PROGRAMS * gpu.multiprocessors:
            return TileShape(1, columns // count or 1, step, COMPUTED_ROW.warps, 1)
    return None


def _tiles_of_words(contraction: Contraction, gpu: Gpu, count: int) -> tuple[TileShape, ...]:
    """Those for few rows times words of several numbers, the fastest first; none where there are no words.

    One after another, rows are as fast as one as long as memory takes the time, which it does for longer
    where columns are few.
    """
    right = contraction.right.producer
    is_one = contraction.batch == 1 and contraction.taps == 1 and contraction.groups is None
    if right is None or right.factor is not None or not is_one:
        return ()
    if not contraction.is_static or contraction.dtype not in HALVES:
        return ()
    parts = parts_of(contraction)
    split = _split_tiles(contraction, parts, gpu, count)
    one_by_one = _tiles_of_rows(contraction, parts, gpu)
    is_wide = static(contraction.columns) >= SPLIT_TILES[0][0] // 2 * gpu.multiprocessors
    are_few = static(contraction.rows) <= (2 if is_wide else MAX_ROWS)
    return (*one_by_one, *split) if are_few else (*split, *one_by_one)


def _tiles_of_rows(contraction: Contraction, parts: Parts, gpu: Gpu) -> tuple[TileShape, ...]:
    rows, columns = static(contraction.rows), static(contraction.columns)
    if rows > MAX_ROWS or parts.neighbours <= WORD_BYTES:
        return ()
    first, second, third = ROWS_TILES
    if columns < FEW_PROGRAMS * first[0] * gpu.multiprocessors and rows < MAX_ROWS:
        first, second = second, first
    height = 1 << (rows - 1).bit_length()
    fitting = (s for s in (first, second, third) if s[1] <= int(contraction.inner))
    return tuple(TileShape(height, *s, 1) for s in fitting if s[1] % parts.count == 0)


def _split_tiles(
    contraction: Contraction, parts: Parts, gpu: Gpu, count: int
) -> tuple[TileShape, ...]:
    columns, inner = static(contraction.columns), int(contraction.inner)
    shapes: Sequence[tuple[int, ...]] = SPLIT_TILES
    if parts.neighbours == WORD_BYTES and columns < FLAT.columns * gpu.multiprocessors:
        shapes = SPLIT_BYTES
    elif parts.neighbours <= WORD_BYTES:
        return ()
    filling = [s for s in shapes if columns >= s[0] // 2 * gpu.multiprocessors] or shapes[-1:]
    found = []
    for width, words, splits, warps, stages in dict.fromkeys((*filling, *shapes)):
        step = words * parts.count
        row = FEW_ROWS * step * contraction.dtype.itemsize
        shared = (row + count * width * words * WORD_BYTES * parts.pieces) * splits * (stages - 1)
        is_whole = inner % (step * splits) == 0 and is_made_of_words(contraction, parts, words)
        if is_whole and shared <= gpu.tile_bytes:
            found.append(TileShape(FEW_ROWS, width, step, warps, stages, splits=splits))
    return tuple(found)


def reducing_tile(contraction: Contraction, gpu: Gpu) -> tuple[TileShape, int] | None:
    """The tile in which what is made of static sizes is reduced along its rows, and how many a program makes.

    None where the rows are not those of whole tiles, nor all in one.  As many programs as three a
    multiprocessor, each with one tile after another, as soon as that is two tiles; else the taller of both
    tiles, one each (docs/decisions/gpu.md has the times).
    """
    rows, columns = int(contraction.rows), int(contraction.columns)
    options = tiles_for(contraction, gpu)
    whole = next((t for t in options if t.rows > 1 and rows <= t.rows), None)
    if whole is not None:
        return whole, 1
    if not contraction.by_channel:
        own = (NARROW, SMALL) if columns <= NARROW.columns else (SMALL,)
        fitting = (_in_steps(t, int(contraction.inner)) for t in own)
        itemsize = contraction.dtype.itemsize
        options = (*(t for t in fitting if t.shared_bytes(itemsize) <= gpu.tile_bytes), *options)
    tile = next((t for t in options if t.rows > 1 and rows % t.rows == 0), None)
    if tile is None:
        return None
    count, across = rows // tile.rows, _count(columns, tile.columns)
    wanted = count * across / (REDUCING_PROGRAMS * gpu.multiprocessors)
    divisors = (k for k in range(1, int(2 * wanted) + 1) if count % k == 0)
    repeats = min(divisors, key=lambda k: abs(math.log(k / wanted)), default=1)
    if repeats == 1 and tile.rows == SMALL.rows and rows % TALL.rows == 0 and TALL in options:
        tile = _in_steps(TALL, int(contraction.inner))
    return tile, repeats


def _in_steps(tile: TileShape, inner: int) -> TileShape:
    """``tile`` in steps of which an ``inner`` extent has whole ones, where it has."""
    steps = [k for k in (tile.step, 32, 16) if inner % k == 0]
    return replace(tile, step=steps[0] if steps else tile.step if inner > 32 else 32)


def squares(contraction: Contraction) -> int:
    """How many large tiles the result has."""
    count = _count(static(contraction.rows), SQUARE.rows)
    return static(contraction.batch) * count * _count(static(contraction.columns), SQUARE.columns)


def _count(size: int, side: int) -> int:
    return -(-size // side)
