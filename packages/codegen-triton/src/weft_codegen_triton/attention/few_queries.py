"""Attention of few queries, which few programs would go through: in how many parts others have their keys."""

from __future__ import annotations

from weft_loop_ir import AttentionKernel

from weft_codegen_triton.attention.functions import AttentionTile, has_short_rows
from weft_codegen_triton.attention.score_tile import padded
from weft_codegen_triton.gpu import Gpu

MAX_QUERIES = 64
KEYS = 64
"""Of a block."""
LONG_PART = 128
"""Keys of a part from which on loads of several blocks are in flight."""


def parts_of_keys(attention: AttentionKernel, gpu: Gpu) -> int:
    """A power of two, 1 where the programs of whole matrices are enough, or sizes vary.

    About a program for each multiprocessor.
    """
    batches, queries = attention.score_rows.batches, attention.score_rows.queries
    keys = attention.key_loop.size
    sizes = (batches, queries, keys)
    if attention.counters is None or not all(n.is_Integer for n in sizes):
        return 1
    if not has_short_rows((attention.query, attention.value)) or int(queries) > MAX_QUERIES:
        return 1
    most = min(gpu.multiprocessors // int(batches), -(-int(keys) // KEYS))
    return 1 << max(most, 1).bit_length() - 1


def tile_of_parts(attention: AttentionKernel, parts: int) -> AttentionTile:
    """What a program goes through at once."""
    queries, widest = padded(attention.score_rows.queries), padded(attention.query.size[2])
    keys = KEYS if widest <= 128 else KEYS // 2
    is_long = int(attention.key_loop.size) > parts * LONG_PART
    if is_long or queries > 16:
        return AttentionTile(queries, keys, 4, 3)
    return AttentionTile(queries, keys, 2, 2)
