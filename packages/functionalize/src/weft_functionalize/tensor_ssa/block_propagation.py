"""BlockPropagation of algorithm 1: carries new versions out of the blocks that define them.

In straight-line programs each version is defined in the block of the value that it replaces, and there is
nothing to carry.  A control-flow operator whose blocks only read is left as it is; one whose blocks
write is not supported yet.
"""

from __future__ import annotations

from .._torch import OpOverload
from ..unsupported import Unsupported
from .block import Block, BlockTree
from .functional_counterparts import written_arguments


def block_propagation(tree: BlockTree) -> None:
    """Check that no version crosses a block's border."""
    for block in tree.blocks:
        if block.owning_node is not None:
            _check_reads_only(block)


def _check_reads_only(block: Block) -> None:
    for node in block.graph.nodes:
        if isinstance(node.target, OpOverload) and written_arguments(node.target):
            raise Unsupported(
                "write inside a control-flow region", f"{node.target} in {block.owning_node}"
            )
