"""Block sizes: how many points one program of a kernel handles, by extents and access patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import sympy
import torch
from weft_loop_ir import Kernel, LoopBody, LoopVariable, Stage
from weft_loop_ir.bodies import REDUCTIONS
from weft_loop_ir.expressions import unit_stride, unit_strides
from weft_loop_ir.guesses import LOOP_EXTENT, guessed

from weft_codegen_triton.gpu import Gpu

ELEMENTS_PER_WARP = 256
FULL_ELEMENTS_PER_WARP = 512
"""Where enough programs run to hide what each waits for: 16 elements a thread."""
GRID_LIMIT = 65535
"""Programs along a grid's second axis."""
BUSY_TILES, MANY_PROGRAMS = 2, 32
"""Programs for each multiprocessor that keep a GPU busy, and of which it runs many waves."""
MAX_BLOCK_SCALE = 4
"""Tuning tries no blocks larger than the chosen ones by more."""
VECTOR_BYTES = 16
"""What a thread reads at once, at most; kernels' buffers begin at a multiple of it."""
LONG_ROWS = 4
"""Of rows so long that a multiprocessor has memory for no more half as many are read at once.

The cache keeps them then until they are read again.
"""
MIN_VARYING_PROGRAM = 512
"""Elements that a program handles at least, where a later call may have many more than the first."""
MIN_VARYING_BLOCK = 64
"""Elements of a row of any length that are read at once, at least."""
COLUMN_ELEMENTS = 2048
"""Of a tile of 32 columns that a program adds up, in 4 warps while the next tiles are on their way."""
TILES_IN_FLIGHT, COLUMN_PROGRAMS = 3, 4
"""Of operands, where shared memory has place for those of so many programs on each multiprocessor."""
SUMMING_ELEMENTS, ROWS_IN_FLIGHT = 512, 3
"""Of rows whose columns are added up too: elements of a warp, blocks asked for."""
MANY_ELEMENTS, SHORT_BLOCK, FEW_SUMS = 1024, 2048, 2
"""The former of longer blocks, where threads have registers for so many sums of each."""
SUMMING_PROGRAMS = {1024: 8, 2048: 4, 6144: 2}
"""Programs a multiprocessor of those, by the longest rows; one where they are longer."""
FEW_COLUMNS = 16
"""In a tile, where the kernel has less than 32 for each multiprocessor."""
CROSSED_ELEMENTS, CROSSED_ROWS = 8192, 32
"""Of a tile that some operands are read along one side and others along the other."""
SHORT_ROW = 1024
"""Elements of a row of which several fit in a few warps: 32 elements a thread then."""
TILE = 64
"""Points along each side of a tile of a transposition."""


@dataclass(frozen=True)
class ReductionBlocks:
    """``rows`` at once; ``columns`` is the block along each distinct inner range.

    ``persistent``: every range is one block, so that a row is read once and kept in registers.
    ``loops_over_rows``: a loop reads blocks of rows whose elements lie side by side.
    ``in_flight``: how many blocks of a row a loop asks for at a time.
    """

    rows: int
    columns: tuple[int, ...]
    persistent: bool
    loops_over_rows: bool
    warps: int
    in_flight: int = 1


def extent(loops: tuple[LoopVariable, ...]) -> sympy.Expr:
    """The number of iterations of a loop nest."""
    result: sympy.Expr = sympy.S.One
    for loop in loops:
        result = result * loop.size
    return result


def static(expression: sympy.Expr) -> int:
    """The value, or a guess where it varies."""
    return guessed(expression, LOOP_EXTENT)


def power_of_two(value: int) -> int:
    """The least power of two that is not below ``value``."""
    return 1 << max(value - 1, 0).bit_length()


def accesses(body: LoopBody, without: Set[str] = frozenset()) -> Iterator[sympy.Expr]:
    """The index of every access to a buffer that is not in ``without``, nested bodies included."""
    return (access.index for access in body.accesses() if access.buffer not in without)


def pointwise_block(count: sympy.Expr, max_item: int, varies: bool = False) -> tuple[int, int]:
    """Elements and warps of a one-dimensional block; ``max_item``: bytes of the widest element.

    Where ``count`` is that of the first call and ``varies``, the block is none for few elements.  Two loads
    of 16 bytes a thread from each buffer hide what elements of 16 bits are computed of.
    """
    elements = static(count)
    block = 1024 if elements >= 1 << 20 else 512 if elements >= 1 << 17 else 256
    if max_item <= 2 and elements >= 1 << 22:
        block = 2048
    if varies:
        return max(block, MIN_VARYING_PROGRAM), 4
    return min(block, max(32, power_of_two(elements))), 4 if block >= 512 else 2


def widened(blocks: ReductionBlocks, kernel: Kernel, tile: int) -> ReductionBlocks:
    """``blocks`` with more rows at once, for a program that handles at least ``tile`` elements."""
    if blocks.loops_over_rows:
        return blocks
    rows = min(power_of_two(static(extent(kernel.outer))), tile // max(blocks.columns))
    return replace(blocks, rows=max(rows, blocks.rows))


def transposed_loop(kernel: Kernel) -> int | None:
    """The outer loop along which loads are contiguous though stores are not; None if there is none."""
    if len(kernel.outer) < 2 or len(kernel.stages) != 1:
        return None
    last = kernel.outer[-1].symbol
    if static(kernel.outer[-1].size) > GRID_LIMIT:
        return None
    indices = list(accesses(kernel.stages[0].body))
    if not any(unit_stride(e, last) for e in indices):
        return None
    for position, loop in enumerate(kernel.outer[:-1]):
        if static(loop.size) < 16 or static(kernel.outer[-1].size) < 16:
            continue
        if any(unit_stride(e, loop.symbol) and last in e.free_symbols for e in indices):
            return position
    return None


def with_sizes(kernel: Kernel, hints: Mapping[sympy.Symbol, sympy.Integer]) -> Kernel:
    """``kernel`` with its loops as long as ``hints`` say, where sizes vary: to choose blocks by."""

    def known(loops: tuple[LoopVariable, ...]) -> tuple[LoopVariable, ...]:
        return tuple(LoopVariable(v.symbol, v.size.xreplace(hints)) for v in loops)

    return replace(kernel.with_ranges(known), outer=known(kernel.outer))


def reduction_blocks(
    kernel: Kernel,
    ranges: tuple[tuple[LoopVariable, ...], ...],
    limit: int,
    gpu: Gpu,
    width: int,
    varies: bool = False,
    rows_vary: bool = False,
) -> ReductionBlocks:
    """Blocks for a kernel whose stages run over ``ranges``; ``limit``: the longest persistent row.

    ``width``: bytes of what is read for one element of a row, as :func:`widest_reads` says.

    Where the length of a row ``varies``, blocks of columns are not persistent, and those of rows for rows
    that are no longer than the blocks.  Where ``rows_vary``, no block is for few rows.
    """
    rows = static(extent(kernel.outer))
    extents = [extent(r) for r in ranges]
    longest = max(static(e) for e in extents)
    by_row, by_column = _side_by_side(kernel)
    is_crossed = 0 < by_row <= by_column
    sums_tiles = len(kernel.stages) == 1 and longest > CROSSED_ELEMENTS // CROSSED_ROWS
    if by_row > by_column or (is_crossed and sums_tiles):
        return _column_blocks(rows, extents, gpu, width, varies, rows_vary)
    persistent = longest <= limit and all(e.is_Integer for e in extents)
    columns = tuple(power_of_two(static(e)) if persistent else 4096 for e in extents)
    if persistent and varies:
        columns = tuple(max(block, MIN_VARYING_BLOCK) for block in columns)
    elements = 1024 if max(columns) < 512 else 2048
    block_rows = min(max(1, elements // max(columns)), power_of_two(rows))
    block_rows = min(block_rows, max(1, power_of_two(rows) // 1024))
    if persistent and is_crossed:
        wide = min(CROSSED_ELEMENTS // max(columns), CROSSED_ROWS, rows // gpu.many_tiles)
        block_rows = max(block_rows, power_of_two(wide + 1) // 2)
    if rows_vary:
        block_rows = max(block_rows, MIN_VARYING_PROGRAM // max(columns))
    elements = block_rows * max(columns)
    fills = persistent and rows // block_rows >= MANY_PROGRAMS * gpu.many_tiles
    per_warp = FULL_ELEMENTS_PER_WARP if fills else ELEMENTS_PER_WARP
    if fills and max(columns) <= SHORT_ROW:
        per_warp = 2 * FULL_ELEMENTS_PER_WARP
    warps = min(16, max(1, power_of_two(elements // per_warp)))
    return ReductionBlocks(block_rows, columns, persistent, not persistent, warps)


def summing_programs(width: int) -> int:
    """Programs a multiprocessor of a kernel that adds up the columns of rows of ``width`` elements."""
    return next((count for longest, count in SUMMING_PROGRAMS.items() if width <= longest), 1)


def summing_blocks(kernel: Kernel, part: int, gpu: Gpu, width: int, sums: int) -> ReductionBlocks:
    """Blocks of a kernel whose programs each go through ``part`` rows and add up their columns too.

    ``width``: bytes of what is read for one element of a row.  ``sums``: of each column.
    """
    longest = static(extent(kernel.ranges[0]))
    block = power_of_two(longest)
    each = MANY_ELEMENTS if block > SHORT_BLOCK and sums <= FEW_SUMS else SUMMING_ELEMENTS
    rows = max(1, min(SUMMING_ELEMENTS // block, power_of_two(part)))
    wanted = summing_programs(longest)
    programs = max(1, static(extent(kernel.outer)) // part // gpu.multiprocessors)
    busy = power_of_two(wanted // programs + 1) // 2  # few programs have more threads
    warps = min(16, max(1, rows * block // each, busy))
    fitting = gpu.tile_bytes // wanted // max(rows * block * width, 1)
    in_flight = min(ROWS_IN_FLIGHT, fitting + 1)  # the one that is added up lies in registers
    return ReductionBlocks(rows, (block,), True, False, warps, in_flight)


def _column_blocks(
    rows: int,
    extents: Sequence[sympy.Expr],
    gpu: Gpu,
    width: int,
    varies: bool,
    rows_vary: bool,
) -> ReductionBlocks:
    """Blocks where neighbouring rows lie side by side: they are the columns that are added up."""
    longest = max(map(static, extents))
    persistent = longest <= 64 and not varies and all(e.is_Integer for e in extents)
    block_rows = 32 if rows >= 32 * gpu.many_tiles else FEW_COLUMNS
    if persistent:  # short: as many side by side as make a tile, where that leaves programs enough
        each = power_of_two(rows // (COLUMN_PROGRAMS * gpu.many_tiles) + 1) // 2
        block_rows = max(block_rows, min(each, COLUMN_ELEMENTS // 2 // power_of_two(longest)))
    block_rows = block_rows if rows_vary else min(block_rows, power_of_two(rows))
    at_once = COLUMN_ELEMENTS // block_rows
    loop = at_once if varies else min(at_once, power_of_two(longest))
    columns = tuple(power_of_two(static(e)) if persistent else loop for e in extents)
    elements = block_rows * max(columns)
    fitting = gpu.tile_bytes // COLUMN_PROGRAMS // max(elements * width, 1)
    in_flight = 1 if persistent else max(1, min(TILES_IN_FLIGHT, fitting))
    per_warp = ELEMENTS_PER_WARP if in_flight == 1 else FULL_ELEMENTS_PER_WARP
    warps = min(16, max(1, power_of_two(elements // per_warp)))
    return ReductionBlocks(block_rows, columns, persistent, False, warps, in_flight)


def vector_blocks(
    kernel: Kernel, ranges: int, step: int, width: int, gpu: Gpu, *, is_shifted: bool
) -> ReductionBlocks:
    """Blocks for loops that read one row by vectors of ``width`` elements, ``step`` at once.

    Positions are found in smaller blocks.  A row that begins anywhere has blocks at its ends that are dearer,
    so fewer and larger ones are better; so they are for rows too long for the cache to keep many of.
    """
    longest = max(static(extent(stage.inner)) for stage in kernel.stages)
    if any(map(finds_positions, kernel.bodies)):
        step //= 2
    elif is_shifted or (
        _is_read_again(kernel)
        and longest * VECTOR_BYTES // width >= gpu.all_shared_bytes // LONG_ROWS
    ):
        step *= 2
    step = max(step, 2 * width)
    return ReductionBlocks(
        1, (step,) * ranges, False, True, min(32, max(1, step // ELEMENTS_PER_WARP))
    )


def _is_read_again(kernel: Kernel) -> bool:
    """Whether several stages read rows of one buffer."""
    read = [set(stage.body.reads) & set(kernel.reads) for stage in kernel.stages if stage.inner]
    return len(set().union(*read)) < sum(map(len, read))


def finds_positions(body: LoopBody) -> bool:
    """Whether a reduction of ``body`` gives a position."""
    return any(REDUCTIONS[reduction.kind].finds_position for reduction in body.reductions())


def columns_are_contiguous(kernel: Kernel) -> bool:
    """Whether neighbouring rows, not neighbouring elements of a row, lie side by side."""
    by_row, by_column = _side_by_side(kernel)
    return by_row > by_column


def lies_by_columns(kernel: Kernel) -> bool:
    """Whether an access finds neighbouring rows side by side."""
    return _side_by_side(kernel)[0] > 0


def _side_by_side(kernel: Kernel) -> tuple[int, int]:
    """How many accesses find neighbouring rows side by side, and how many a row's neighbouring elements."""
    if not kernel.outer:
        return 0, 0
    last = kernel.outer[-1].symbol
    by_row = by_column = 0
    for stage in kernel.stages:
        if stage.inner:
            symbols = last, stage.inner[-1].symbol
            both = [i for i in accesses(stage.body) if i.free_symbols.issuperset(symbols)]
            along = unit_strides(both, *symbols)
            by_row, by_column = by_row + along[0], by_column + along[1]
    return by_row, by_column


def widest_reads(kernel: Kernel, dtype_of: Callable[[str], torch.dtype]) -> int:
    """Bytes that a stage reads for each element of each row, in the stage of the most."""
    outer = {loop.symbol for loop in kernel.outer}

    def width(stage: Stage) -> int:
        inner = {loop.symbol for loop in stage.inner}
        read = {
            (load.buffer, load.index)
            for load in stage.body.loads()
            if load.index.free_symbols & inner and load.index.free_symbols & outer
        }
        return sum(dtype_of(buffer).itemsize for buffer, _ in read)

    return max(map(width, kernel.stages))
