"""Removes nodes that nothing uses and that have no effect."""

from __future__ import annotations

import functools

import torch
import torch.fx

from .._torch import COMMUNICATES, HigherOrderOperator, OpOverload


def is_impure(node: torch.fx.Node) -> bool:
    """Whether running ``node`` matters beyond its result: a random generator advances, an assertion fails."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    return isinstance(node.target, OpOverload) and _has_effect(node.target)


@functools.cache
def _has_effect(target: OpOverload) -> bool:
    return (
        torch.Tag.nondeterministic_seeded in target.tags
        or not target._schema.returns
        or target.namespace == COMMUNICATES
    )


def eliminate_dead_code(graph: torch.fx.Graph) -> int:
    """Remove dead nodes; placeholders stay."""
    removed = 0
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not is_impure(node):
            graph.erase_node(node)
            removed += 1
    return removed
