"""Blocks of a graph, which are not fused with one another: each is over before the next one begins.

Of a large matrix that is computed in blocks of rows only one block is held at a time.  Fusion would join
the blocks' kernels, which read the same targets, and hold all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.fx

from weft_loop_ir.lowering.tensors import TensorValue

if TYPE_CHECKING:
    from weft_loop_ir.lowering.lower import Driver

ROW_BLOCK = "row_block"
"""Key of a node's ``meta``: which block it is of, where it is of one."""


@dataclass(frozen=True)
class Block:
    """Nodes that follow each other and are of the block ``name``, or of none."""

    name: object
    nodes: list[torch.fx.Node] = field(default_factory=list)


def enter_block(driver: Driver, block: Block, node: torch.fx.Node) -> Block:
    """The block of ``node``, which follows those of ``block``; what that gives to others is computed."""
    name = node.meta.get(ROW_BLOCK)
    if name != block.name:
        if block.name is not None:
            for inner in block.nodes:
                if any(user.meta.get(ROW_BLOCK) != block.name for user in inner.users):
                    _realize(driver, inner)
        driver.context.row_block += 1
        block = Block(name)
    block.nodes.append(node)
    return block


def _realize(driver: Driver, node: torch.fx.Node) -> None:
    value = driver.values[node]
    if isinstance(value, TensorValue) and value.cost.reads:
        driver.context.realize(value)
