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
    ``blocks``: how many blocks there are at least; ``max_blocks``: at most.
    ``block_bytes``: what a block has at most, but for ``max_blocks``.  The gradient of the weight is read and
    written for each block, which costs a GPU a tenth of the block's matmuls from 2048 rows on.
    ``gradients_in_forward``: gradients of a loss are computed with it, where they are linear in the loss's
    own gradient, and multiplied by that in backward.  Else backward computes each block a second time.
    """

    min_bytes: int | None = 1 << 28
    min_share: float = 0.25
    blocks: int = 4
    max_blocks: int = 16
    block_bytes: int = 1 << 30
    gradients_in_forward: bool = True
