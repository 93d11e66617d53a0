"""Blocks: the straight-line pieces of a program with nested control flow.

An FX graph is a block.  A graph that a control-flow operator runs (the branches of ``cond``, the body of
``while_loop``) is a block owned by the operator's node (paper section 2.1: owningNode, owningBlock).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.fx

from .._torch import HigherOrderOperator


@dataclass(frozen=True, eq=False)
class Block:
    """A graph, the node that runs it (None for the outermost), and the block that node is in."""

    graph: torch.fx.Graph
    owning_node: torch.fx.Node | None = None
    parent: Block | None = None

    @property
    def params(self) -> tuple[torch.fx.Node, ...]:
        return tuple(self.graph.find_nodes(op="placeholder"))

    @property
    def returns(self) -> torch.fx.Node:
        output: torch.fx.Node
        (output,) = self.graph.find_nodes(op="output")
        return output

    def sub_blocks(self) -> Iterator[Block]:
        """The blocks that this block's control-flow operators run, in order."""
        for node in self.graph.nodes:
            if isinstance(node.target, HigherOrderOperator):
                for graph in region_graphs(node):
                    yield Block(graph, node, self)


def region_graphs(node: torch.fx.Node) -> Iterator[torch.fx.Graph]:
    """The graphs that a control-flow operator's node runs."""
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            module = node.graph.owning_module
            # While the graph has no owner, the node itself knows its region.
            known = argument.meta.get("val")
            body = known if module is None else module.get_submodule(str(argument.target))
            if isinstance(body, torch.fx.GraphModule):
                yield body.graph


@dataclass(frozen=True)
class BlockTree:
    """All blocks of a program, and each node's owning block."""

    root: Block
    blocks: tuple[Block, ...]

    def owning_block(self, node: torch.fx.Node) -> Block:
        for block in self.blocks:
            if block.graph is node.graph:
                return block
        raise KeyError(node)


def build_block_tree(graph: torch.fx.Graph) -> BlockTree:
    """The tree of blocks below ``graph``."""
    root = Block(graph)
    blocks = [root]
    for block in blocks:
        blocks.extend(block.sub_blocks())
    return BlockTree(root, tuple(blocks))
