"""Removes what nothing uses and what has no effect."""

from __future__ import annotations

import torch
import torch.fx

from .._torch import HigherOrderOperator, OpOverload
from .block import region_graphs


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node matters even if nothing uses its result.

    An assertion gives nothing; a random operator advances its generator, which later calls see.
    """
    if node.op in ("placeholder", "output"):
        return True
    if isinstance(node.target, HigherOrderOperator):
        return any(has_own_effect(inner) for graph in region_graphs(node) for inner in graph.nodes)
    return has_own_effect(node)


def has_own_effect(node: torch.fx.Node) -> bool:
    """As :func:`has_effect`, of an operator in a block; the block's own inputs and outputs have none."""
    if isinstance(node.target, HigherOrderOperator):
        return has_effect(node)
    if not isinstance(node.target, OpOverload):
        return False
    if not node.target._schema.returns:
        return True
    return (
        torch.Tag.nondeterministic_seeded in node.target.tags
        or node.target.namespace == "_c10d_functional"
    )


def eliminate_dead_code(graph: torch.fx.Graph) -> int:
    """Remove dead nodes from ``graph``; returns how many."""
    removed = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            removed += 1
    return removed
