"""Prints attention as one Triton function: a program goes through the keys for a block of queries.

It keeps the largest score of each query so far, the sum of exponentials relative to that, and the sum of
values weighted by them; both are scaled when a larger score comes.  What is done to a score is the body of
the kernel whose place it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_loop_ir import AttentionKernel, Buffer, RowStatistic, print_index

from weft_codegen_triton.attention.functions import (
    AttentionTile,
    attention_tiles,
    depth_of,
    fitting_tiles,
    has_short_rows,
    masked,
    padded,
    small_tiles,
    within,
)
from weft_codegen_triton.attention.score_printer import LOG2_E, ScorePrinter
from weft_codegen_triton.attention.seen_blocks import seen_keys
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.dtypes import INDEX, triton_dtype
from weft_codegen_triton.kernel.index_bounds import SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel

NARROW_TILES = attention_tiles(
    (128, 64, 8, 3), (64, 64, 4, 3), (128, 64, 4, 3), (128, 128, 8, 3), (64, 32, 4, 3)
)
"""What is timed for 16 bits and at most 128 elements of a query: the first where all keys are seen.

The second is for few queries, and where a mask bounds the keys.
"""
SHORT_TILES = attention_tiles(
    (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 3), (128, 64, 4, 2)
)
"""The same for at most 64 elements."""
WIDE_TILES = attention_tiles((128, 64, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2))
FLOAT_TILES = attention_tiles((64, 32, 8, 2), (32, 32, 4, 2), (64, 64, 8, 2))
"""In float32, which plain arithmetic multiplies: tensor cores would round."""
IN_HALF = (NARROW_TILES, SHORT_TILES)
ROW_STATISTICS = {
    RowStatistic.LARGEST: "largest",
    RowStatistic.TOTAL: "total",
    RowStatistic.LOGARITHM: "tl.log(total)",
}


def print_attention(
    attention: AttentionKernel,
    buffers: Mapping[str, Buffer],
    indices: SymbolicIndices,
    gpu: Gpu,
) -> PrintedKernel:
    """The function of ``attention``, for the tile that suits its size; others are its alternatives.

    ``indices``: how wide those are that only sizes bound.
    """
    return AttentionPrinter(attention, buffers, indices).print(tiles_of(attention, buffers, gpu))


def tiles_of(
    attention: AttentionKernel, buffers: Mapping[str, Buffer], gpu: Gpu
) -> list[AttentionTile]:
    """Those whose blocks ``gpu`` has memory for, the one that suits the size first.

    None where rows of queries and values have no known, short sizes.
    """
    if not has_short_rows((attention.query, attention.value)):
        return []
    _, queries, width = attention.query.size
    depth, columns = padded(width), padded(attention.value.size[2])
    query, value = (
        buffers[o.buffer].layout.dtype.itemsize for o in (attention.query, attention.value)
    )
    if max(query, value) > 2:
        tiles = FLOAT_TILES
    elif depth > 128:
        tiles = WIDE_TILES
    else:
        tiles = NARROW_TILES if depth > 64 else SHORT_TILES

    def bytes_of(tile: AttentionTile) -> int:
        moved = tile.keys * tile.stages * (depth * query + columns * value)
        return tile.queries * depth * query + moved

    small = small_tiles(queries, attention.key_loop.size) if tiles in IN_HALF else []
    if small:
        return fitting_tiles(small, bytes_of, gpu)
    few = queries.is_Integer and int(queries) <= tiles[1].queries
    batches = attention.score_rows.batches
    if queries.is_Integer and batches.is_Integer:
        programs = -(-int(queries) // tiles[0].queries) * int(batches)
        few = few or programs < gpu.multiprocessors
    is_bounded = attention.bounds is not None and tiles in IN_HALF
    first = tiles[1] if few or is_bounded else tiles[0]
    return sorted(fitting_tiles(tiles, bytes_of, gpu), key=lambda t: t is not first)


class AttentionPrinter(ScorePrinter):
    """Prints what a program does that has all the keys of its rows."""

    def __init__(
        self, attention: AttentionKernel, buffers: Mapping[str, Buffer], indices: SymbolicIndices
    ) -> None:
        self.attention = attention
        self.dtype = buffers[attention.out.buffer].layout.dtype
        operands = (attention.query, attention.key, attention.value, attention.out)
        in_half = self.dtype.itemsize == 2
        scores, bodies = (attention.scores,), (attention.score,)
        super().__init__(attention, buffers, scores, bodies, operands, in_half, indices)
        self.query_mask = "ymask"

    def print(self, tiles: Sequence[AttentionTile]) -> PrintedKernel:
        """With the first of ``tiles``, and the others as alternatives."""
        self.begin_rows()
        with self.loop(f"for start in {seen_keys(self, self.attention.bounds)}:"):
            self.print_step()
        self._end()
        grid = self.grid_of(self.queries, "YBLOCK", tiles[0].queries)
        return self.printed(tiles, grid, ("XBLOCK",))

    def begin_rows(self) -> None:
        """The queries, and what the loop over keys changes."""
        attention = self.attention
        depth, columns = attention.query.size[2], attention.value.size[2]
        self.begin("YBLOCK", (depth, columns))
        self.name_rows("first")
        self.emit(
            f"query = {self.rows(attention.query, 'yindex', 'ymask')}",
            f"key_column = {self.place(attention.key, depth_of(depth, '[:, None]'), None)}",
            f"value_row = {self.place(attention.value, None, depth_of(columns, '[None, :]'))}",
            'largest = tl.full([YBLOCK, 1], float("-inf"), tl.float32)',
            "total = tl.zeros([YBLOCK, 1], dtype=tl.float32)",
            f"sums = tl.zeros([YBLOCK, {padded(columns)}], dtype=tl.float32)",
        )
        self.name_loops(of_rows=True, of_batches=True)
        self.print_invariant({attention.key_loop.symbol})

    loads_values_first = False
    """Before the scores of their keys are there, in a loop of few steps, which hide nothing of each other."""

    def print_step(self) -> None:
        """A block of keys."""
        attention = self.attention
        key_step = print_index(attention.key.steps[1], INDEX)
        value_step = print_index(attention.value.steps[0], INDEX)
        depth, columns = attention.query.size[2], attention.value.size[2]
        key_mask = within(self.key_mask, depth_of(depth, "[:, None]"), depth)
        value_mask = within(self.key_row_mask, depth_of(columns, "[None, :]"), columns)
        values = f"values = tl.load(value_row + x[:, None] * {value_step}{masked(value_mask)})"
        self.name_keys("start")
        self.emit(
            f"keys = tl.load(key_column + xindex * {key_step}{masked(key_mask)})",
            *([values] if self.loads_values_first else []),
            'score = tl.dot(query, keys, input_precision="ieee")',
        )
        (element,) = self.print_elements({attention.scores: "score"})
        if self.key_mask:
            element = f'tl.where(xmask, {element}, float("-inf"))'
        self.emit(
            f"element = {element}",
            "higher = tl.maximum(largest, tl.max(element, 1)[:, None])",
            'shift = tl.where(higher == float("-inf"), 0.0, higher)',
            *self._exponentials(),
            "total = total * factor + tl.sum(weight, 1)[:, None]",
            "largest = higher",
            *([] if self.loads_values_first else [values]),
            f"weight = weight.to({triton_dtype(self.dtype)})",
            'sums = tl.dot(weight, values, sums * factor, input_precision="ieee")',
        )

    def _exponentials(self) -> tuple[str, ...]:
        """Those of what has been the largest, and of the elements, relative to ``shift``."""
        if not self.scales_exponents:
            return "factor = tl.exp(largest - shift)", "weight = tl.exp(element - shift)"
        return (
            f"shift = shift * {LOG2_E}",
            f"factor = tl.exp2(largest * {LOG2_E} - shift)",
            f"weight = tl.exp2(element * {LOG2_E} - shift)",
        )

    def _end(self) -> None:
        attention = self.attention
        self.emit("result = sums / total")
        if attention.hidden_are_zero:
            self.emit("result = tl.where(total == 0.0, 0.0, result)")
        self.store_rows(attention.out, "result", "yindex", "ymask")
        rows = f"batch * {self.query_count} + yindex"
        for number, name in attention.kept:
            self.emit(f"tl.store({self.pointers[name]} + {rows}, {ROW_STATISTICS[number]}, ymask)")
