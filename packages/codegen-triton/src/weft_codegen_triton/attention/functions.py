"""What printers of attention share: blocks of matrices, a function for each tile, how it is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import sympy
from weft_loop_ir import MatrixOperand, print_index

from weft_codegen_triton.attention.print_prologues import computed_block
from weft_codegen_triton.attention.score_tile import ScoreTile, depth_of, padded, within
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.dtypes import pointer_type, triton_dtype
from weft_codegen_triton.kernel.expressions import INDEX
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, Scratch
from weft_codegen_triton.kernel.templates import definition, program_id

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
"""Of matrices for which a library's blocks of 64 to 128 queries and keys are mostly empty.

Microseconds on an H200, float16, of the library and of kernels of our own, 2^24 elements: 16 keys of 8
elements 528 and 37, 32 of 32 112 and 50, 49 of 32 112 and 36, 64 of 64 56 and 28.
"""
MAX_TRAINED_KEYS = 32
"""The same with a mask that gets gradients, which are sums over images: a pass of its own.

Forward and backward, 16 keys of 32 elements 1,190 and 350, 49 of 32 540 and 640; a step of BEiT-B, 197 keys
of 64, 16 images, 7.5 and 11.8 ms.
"""
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
    tile: ScoreTile,
    tiles: Sequence[AttentionTile],
    grid: Grid,
    loop_blocks: tuple[str, ...],
    scratch: tuple[Scratch, ...] = (),
) -> PrintedKernel:
    """What has been printed into ``tile``: with the first of ``tiles``, and the others as alternatives."""
    count, given = len(tile.names), tile.parameters()
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
                definition(arguments, tile.printer.lines),
                parameters,
                tuple(constants),
                one.warps,
                tile.printer.uses_assert,
                grid.constants,
                loop_blocks,
                stages=one.stages,
            )
        )
    return PrintedKernel(
        replace(made[0], alternatives=tuple(made[1:])),
        tile.names,
        scratch,
        tile.symbols(),
        tuple(tile.printer.scalars),
        grid.counts,
        grid.blocks,
        tile.width.bounds,
    )


class MatrixPrinter:
    """Prints blocks of matrices into ``tile``, whose rows are those of scores, or keys where it is turned.

    Keys are rows of the tile in a kernel by columns: what is multiplied then lies as matmuls leave it.
    """

    def __init__(self, tile: ScoreTile) -> None:
        self.tile = tile
        self.queries, self.keys = (print_index(n, INDEX) for n in (tile.queries, tile.keys))
        self.query_mask = "" if tile.is_whole(tile.queries) else "ymask"
        self.key_mask = "" if tile.is_whole(tile.keys) else "xmask"
        self.query_row_mask = self.query_mask and f"(y[:, None] < {self.queries})"
        self.key_row_mask = self.key_mask and f"(x[:, None] < {self.keys})"

    def begin(self, block: str, widths: Iterable[sympy.Expr], matrix: str = "batch") -> None:
        """The matrix of a program, the ``first`` of its block, and positions within rows of ``widths``."""
        tile = self.tile
        block_axis = 1 - tile.batch_axis
        number = program_id(block_axis)
        if not tile.turned:  # the last rows may see most keys, the first keys be seen by most rows
            number = f"(tl.num_programs({block_axis}) - 1 - {number})"
        tile.emit(
            f"{matrix} = {program_id(tile.batch_axis)}{tile.printer.cast}",
            f"first = {number}{tile.printer.cast} * {block}",
            *(f"depth{n} = tl.arange(0, {n})" for n in sorted(set(map(padded, widths)))),
        )

    def name_rows(self, first: str) -> None:
        """The rows of the tile, from ``first`` on."""
        tile = self.tile
        row = "[None, :]" if tile.turned else "[:, None]"
        tile.emit(f"y = {first} + tl.arange(0, YBLOCK){tile.printer.cast}", f"yindex = y{row}")
        if self.query_mask:
            tile.emit(f"ymask = yindex < {self.queries}")
        else:
            tile.printer.tile.masks.pop("y", None)

    def rows(self, operand: MatrixOperand, row: str, mask: str) -> str:
        """A block of rows of ``operand``."""
        producer = self.tile.producer(operand)
        if producer is not None:
            block = "YBLOCK" if row == "yindex" else "XBLOCK", row, mask
            return computed_block(self.tile, producer, operand, block)
        depth = depth_of(operand.size[2], "[None, :]")
        return self.tile.load(operand, row, depth, within(mask, depth, operand.size[2]))

    def columns(self, operand: MatrixOperand, column: str, mask: str) -> str:
        """A block of columns of ``operand``."""
        producer = self.tile.producer(operand)
        if producer is not None:
            block = "XBLOCK", column, mask
            return computed_block(self.tile, producer, operand.turned(), block, turned=True)
        depth = depth_of(operand.size[1], "[:, None]")
        return self.tile.load(operand, depth, column, within(mask, depth, operand.size[1]))

    def store(self, result: MatrixOperand, code: str, row: str, mask: str) -> None:
        """Store a block of rows of ``result``."""
        width = result.size[2]
        depth = depth_of(width, "[None, :]")
        place = self.tile.place(result, row, depth)
        self.store_at(result.buffer, place, code, within(mask, depth, width))

    def store_at(self, buffer: str, place: str, code: str, mask: str) -> None:
        """Store elements of ``buffer``; ``mask`` may be empty."""
        kind = triton_dtype(self.tile.buffers[buffer].layout.dtype)
        self.tile.emit(f"tl.store({place}, {code}.to({kind}){mask and f', {mask}'})")
