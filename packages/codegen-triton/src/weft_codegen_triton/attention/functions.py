"""The functions of kernels of attention: one for each tile, and how they are launched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sympy
from weft_loop_ir import MatrixOperand

from weft_codegen_triton.attention.score_tile import ScoreTile
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel
from weft_codegen_triton.kernel.templates import definition

MAX_WIDTH = 256
"""Elements of a row of any operand."""


def has_short_rows(operands: Iterable[MatrixOperand]) -> bool:
    """Whether there is a function for matrices like ``operands``: their rows have known, short sizes."""
    widths = [operand.size[2] for operand in operands]
    return all(n.is_Integer and int(n) <= MAX_WIDTH for n in widths)


@dataclass(frozen=True)
class AttentionTile:
    """Queries and keys of a tile, warps, steps in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Grid:
    """The extents of a grid's axes, how much of each a program handles, and the constants that say so."""

    counts: tuple[sympy.Expr, ...]
    blocks: tuple[int, ...]
    constants: tuple[str, ...]


def with_batches(
    tile: ScoreTile,
    extent: sympy.Expr,
    constant: str,
    block: int,
    batches: sympy.Expr | None = None,
) -> Grid:
    """A grid over ``batches`` (all matrices, where that is not given) and blocks of ``extent``."""
    count = tile.batches if batches is None else batches
    if tile.batch_axis == 1:
        return Grid((extent, count), (block, 1), (constant,))
    return Grid((count, extent), (1, block), ("BATCHES", constant))


def printed_kernel(
    tile: ScoreTile, tiles: Sequence[AttentionTile], grid: Grid, loop_blocks: tuple[str, ...]
) -> PrintedKernel:
    """What has been printed into ``tile``: with the first of ``tiles``, and the others as alternatives."""
    first, *others = _functions(tile, tiles, grid, loop_blocks)
    return PrintedKernel(
        replace(first, alternatives=tuple(others)),
        tile.names,
        (),
        tile.symbols(),
        tuple(tile.printer.scalars),
        grid.counts,
        grid.blocks,
        tile.width.bounds,
    )


def _functions(
    tile: ScoreTile, tiles: Sequence[AttentionTile], grid: Grid, loop_blocks: tuple[str, ...]
) -> list[Function]:
    """What has been printed into ``tile``, for each of ``tiles``."""
    parameters = tile.parameters()
    made = []
    for one in tiles:
        constants = [("YBLOCK", one.queries), ("XBLOCK", one.keys)]
        if "BATCHES" in grid.constants:
            constants.append(("BATCHES", 1))
        arguments = [name for name, _ in parameters]
        arguments += [f"{name}: tl.constexpr" for name, _ in constants]
        made.append(
            Function(
                definition(arguments, tile.printer.lines),
                parameters,
                tuple(constants),
                one.warps,
                tile.printer.uses_assert,
                grid.constants,
                loop_blocks,
                True,
                stages=one.stages,
            )
        )
    return made
