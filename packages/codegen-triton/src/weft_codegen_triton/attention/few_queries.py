"""Attention of few queries, which few programs would go through: in how many parts others have their keys."""

from __future__ import annotations

from weft_loop_ir import AttentionKernel

from weft_codegen_triton.attention.functions import AttentionTile, attention_tiles, padded
from weft_codegen_triton.gpu import GRAPH_LAUNCH, Gpu

MAX_QUERIES = 64
MAX_WIDTH = 128
"""Elements of a query or value; a program has not the registers for more of several keys."""
HALF = 2
"""Bytes of an element."""
KEYS = 64
"""Of a block."""
LONG_PART = 128
"""Keys of a part from which on loads of several blocks are in flight."""
MAX_PARTS = 16
"""What the last program joins; with 32 it took longer than they saved."""
MIN_KEYS = 256
"""Without a mask, which a library reads besides."""
MAX_NEW_ROWS = 1
"""Of a cache's matrix that its kernel stores; more were not measured."""
MAX_LAUNCHES = 8
"""In the time of how many the keys and values may be read, where all are: what is saved is about one."""


def parts_of_keys(attention: AttentionKernel, gpu: Gpu) -> int:
    """A power of two, 1 where the programs of whole matrices are enough, or sizes vary.

    About a program for each multiprocessor: more of them took longer.  What was measured stands in
    benchmarks/results/gpu-models.md.
    """
    batches, queries = attention.score_rows.batches, attention.score_rows.queries
    keys = attention.key_loop.size
    widths = attention.query.size[2], attention.value.size[2]
    if attention.counters is None or not all(
        n.is_Integer for n in (batches, queries, keys, *widths)
    ):
        return 1
    if int(queries) > MAX_QUERIES or max(map(int, widths)) > MAX_WIDTH:
        return 1
    nbytes = HALF * int(batches * keys * sum(widths))
    has_mask = any(load.buffer != attention.scores for load in attention.score.loads())
    if attention.bounds is None and (
        (int(keys) < MIN_KEYS and not has_mask) or gpu.moving(nbytes) > MAX_LAUNCHES * GRAPH_LAUNCH
    ):
        return 1
    most = min(-(-int(keys) // KEYS), MAX_PARTS, gpu.multiprocessors // int(batches))
    return 1 << max(most, 1).bit_length() - 1


def tile_of_parts(attention: AttentionKernel, parts: int, gpu: Gpu) -> AttentionTile:
    """What a program goes through at once; the least of what it may be fits every GPU."""
    queries, depth = padded(attention.score_rows.queries), padded(attention.query.size[2])
    columns = padded(attention.value.size[2])
    is_long = int(attention.key_loop.size) > parts * LONG_PART
    tiles = attention_tiles((queries, KEYS, 4, 3), (queries, KEYS, 2, 2), (queries, 16, 2, 1))

    def fits(tile: AttentionTile) -> bool:
        moved = tile.keys * tile.stages * (depth + columns)
        return HALF * (tile.queries * depth + moved) <= gpu.tile_bytes

    first = 0 if is_long or queries > 16 else 1
    return next(filter(fits, tiles[first:]), tiles[-1])
