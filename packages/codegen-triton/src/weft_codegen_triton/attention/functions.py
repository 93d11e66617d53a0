"""What printers of attention share: tiles and those that fit, grids, the texts of places and masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import sympy
from weft_loop_ir import MatrixOperand

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import power_of_two

MIN_SIDE = 16
"""Of a block that tensor cores multiply."""
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


def attention_tiles(*numbers: tuple[int, int, int, int]) -> tuple[AttentionTile, ...]:
    """The tiles that have these numbers."""
    return tuple(AttentionTile(*each) for each in numbers)


MIN_TILES = attention_tiles((32, 32, 4, 1), (16, 32, 4, 1), (16, 16, 4, 1))
"""For devices that have no memory for others."""


MAX_KEYS = 64
"""Of matrices for which a library's blocks of 64 to 128 queries and keys are mostly empty."""
MAX_TRAINED_KEYS = 32
"""The same with a mask that gets gradients, which are sums over images: a pass of its own."""
SMALL_TILES = attention_tiles(
    (128, 32, 4, 1), (64, 32, 4, 1), (32, 32, 2, 1), (32, 32, 1, 1), (16, 32, 1, 1),
    (64, 16, 4, 1), (32, 16, 2, 1), (16, 16, 1, 1), (16, 16, 2, 1),
)  # fmt: skip
"""For matrices of few keys, all in one tile, for which few warps do."""


def small_tiles(queries: sympy.Expr, keys: sympy.Expr) -> list[AttentionTile]:
    """Those of :data:`SMALL_TILES` that have all the keys and no more queries than are there."""
    if not keys.is_Integer:
        return []
    rows = padded(queries) if queries.is_Integer else SMALL_TILES[0].queries
    return [t for t in SMALL_TILES if t.keys == padded(keys) and t.queries <= rows]


def fitting_tiles(
    tiles: Iterable[AttentionTile], bytes_of: Callable[[AttentionTile], int], gpu: Gpu
) -> list[AttentionTile]:
    """Those of ``tiles`` whose blocks, of so many bytes, ``gpu`` has memory for; else a small one or none."""

    def fitting(some: Iterable[AttentionTile]) -> list[AttentionTile]:
        return [tile for tile in some if bytes_of(tile) <= gpu.tile_bytes]

    return fitting(tiles) or fitting(MIN_TILES)[:1]


@dataclass(frozen=True)
class Grid:
    """The extents of a grid's axes, how much of each a program handles, and the constants that say so."""

    counts: tuple[sympy.Expr, ...]
    blocks: tuple[int, ...]
    constants: tuple[str, ...]


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
