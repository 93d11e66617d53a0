"""Attention of few queries, which few programs would go through: in how many parts others have their keys."""

from __future__ import annotations

from weft_loop_ir import AttentionKernel

from weft_codegen_triton.attention.functions import AttentionTile
from weft_codegen_triton.attention.score_tile import padded
from weft_codegen_triton.gpu import Gpu

MAX_QUERIES = 64
MAX_WIDTH = 128
"""Elements of a query or value; a program has not the registers for more of several keys."""
KEYS = 64
"""Of a block."""
LONG_PART = 128
"""Keys of a part from which on loads of several blocks are in flight."""
BUSY_PART = 256
"""Keys of a part that leave it to do, where there is a program for each multiprocessor without it."""
MAX_PARTS = 16
"""What the last program joins; with 32 it took longer than they saved."""
MIN_KEYS = 256
"""Without a mask, which a library reads besides."""


def parts_of_keys(attention: AttentionKernel, gpu: Gpu) -> int:
    """A power of two, 1 where the programs of whole matrices are enough, or sizes vary.

    Measured on an H200 with heads of 128 elements, 8 heads of keys, 1 to 8 images, 128 to 8192 keys.
    """
    batches, queries = attention.score_rows.batches, attention.score_rows.queries
    keys = attention.key_loop.size
    widths = attention.query.size[2], attention.value.size[2]
    if attention.counters is None or not all(
        n.is_Integer for n in (batches, queries, keys, *widths)
    ):
        return 1
    has_mask = any(load.buffer != attention.scores for load in attention.score.loads())
    has_few = not has_mask and attention.bounds is None and int(keys) < MIN_KEYS
    if int(queries) > MAX_QUERIES or has_few or max(map(int, widths)) > MAX_WIDTH:
        return 1
    each = gpu.multiprocessors // int(batches)
    busy = max(each, int(keys) // BUSY_PART)
    most = min(-(-int(keys) // KEYS), MAX_PARTS, 4 * each, busy)
    return 1 << max(most, 1).bit_length() - 1


def tile_of_parts(attention: AttentionKernel, parts: int) -> AttentionTile:
    """What a program goes through at once."""
    queries = padded(attention.score_rows.queries)
    is_long = int(attention.key_loop.size) > parts * LONG_PART
    if is_long or queries > 16:
        return AttentionTile(queries, KEYS, 4, 3)
    return AttentionTile(queries, KEYS, 2, 2)
