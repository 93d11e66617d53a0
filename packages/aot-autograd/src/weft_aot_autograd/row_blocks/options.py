"""Options of computing in blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowBlockOptions:
    """Which matrices are computed in blocks of rows, and in how many.

    ``min_bytes``: what a matrix has at least, None: none is.  Below 256 MiB a few of them are a small part of
    what a step holds, while each block costs some launches.
    ``min_share``: what it has at least beside all inputs of the graph: a step holds these and their gradients
    anyway, so that less than a quarter of them hardly moves its peak.
    ``min_saved_share``: what it has at least beside all that forward leaves for backward, without what blocks
    compute.  A network for images has as large matrices in many layers: blocks of each take time, and what
    is saved stays.
    ``layers``: whether that may be a matrix between two matmuls, as in the feed-forward part of a layer, or
    one that only backward makes, in training.  Backward computes each block a second time there, matmuls
    included, which a program that is one layer of many (modules that are compiled one by one) would do for
    all layers.
    ``blocks``: how many blocks there are at least; ``max_blocks``: at most.  Each is a few library calls, and
    equal ones share their kernels.
    ``block_rows``: how many rows a block has at least where there are more than ``blocks`` of them, on a CPU;
    ``gpu_block_rows``: elsewhere.  The gradient of the weight is read and written for each block: on a CPU
    that takes about a twentieth of the time of the block's matmuls from 128 rows on, on a GPU, which
    multiplies faster beside its memory, a tenth from 2048 on (both by their rates, not measured).  Blocks of
    16-bit numbers have twice as many rows on a CPU: matmuls take less time there, sums in float32 more.
    ``gradients_in_forward``: gradients of a loss are computed with it, where they are linear in the loss's
    own gradient, and multiplied by that in backward.  Else backward computes each block a second time.
    """

    min_bytes: int | None = 1 << 28
    min_share: float = 0.25
    min_saved_share: float = 0.1
    layers: bool = False
    blocks: int = 4
    max_blocks: int = 16
    block_rows: int = 128
    gpu_block_rows: int = 2048
    gradients_in_forward: bool = True
