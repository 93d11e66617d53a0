"""Removes what nothing uses and what has no effect."""

from __future__ import annotations

import functools

import torch
import torch.fx

from .._torch import HigherOrderOperator, OpOverload
from .block import region_graphs
from .emitter import SCATTERS
from .layout import same_layout

aten = torch.ops.aten

_PARTIAL_WRITES = SCATTERS - {aten.as_strided_scatter.default}
"""Those that write as much of their first argument in any layout of it."""


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
    return isinstance(node.target, OpOverload) and _acts(node.target)


@functools.cache
def _acts(operator: OpOverload) -> bool:
    """Whether an operator matters by itself: its schema and its tags are made anew whenever they are read."""
    if not operator._schema.returns:
        return True
    is_random = torch.Tag.nondeterministic_seeded in operator.tags
    return is_random or operator.namespace == "_c10d_functional"


def eliminate_dead_code(graph: torch.fx.Graph) -> int:
    """Remove dead nodes from ``graph``; returns how many."""
    _skip_overwritten(graph)
    alive: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if has_effect(node) and not _only_reads(node):
            _keep(node, alive)
    for node in graph.find_nodes(op="call_function", target=_READER):
        if _only_reads(node) and not _is_read(node.args[0], alive):
            _keep(node, alive)
    dead = [node for node in graph.nodes if node not in alive]
    for node in reversed(dead):
        graph.erase_node(node)
    return len(dead)


_READER = aten._assert_tensor_metadata.default
_READ_ONLY_METADATA = (
    *(aten.empty_like, aten.full_like, aten.ones_like, aten.zeros_like),
    *(aten.new_empty, aten.new_full, aten.new_ones, aten.new_zeros, aten.new_empty_strided),
    *(aten.rand_like, aten.randn_like, aten.randint_like),
)


def _only_reads(node: torch.fx.Node) -> bool:
    """Whether a node asserts nothing: it is there for the errors of the operator whose result it reads."""
    return node.target is _READER and len(node.args) == 1 and not node.kwargs


def _is_read(node: torch.fx.Node, alive: set[torch.fx.Node]) -> bool:
    """Whether an operator that lives needs what the node gives, and not only its shape."""
    return any(
        user in alive and getattr(user.target, "overloadpacket", None) not in _READ_ONLY_METADATA
        for user in node.users
    )


def _keep(node: torch.fx.Node, alive: set[torch.fx.Node]) -> None:
    """Let a node, and all that it needs, live."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node not in alive:
            alive.add(node)
            waiting.extend(node.all_input_nodes)


def _skip_overwritten(graph: torch.fx.Graph) -> None:
    """Write parts to the version before those that the same write replaces as a whole.

    ``x[0] += 1`` writes ``x[0]`` twice: in place, then as an item of ``x``.
    """
    for node in graph.nodes:
        if node.target not in _PARTIAL_WRITES:
            continue
        base = node.args[0]
        while base.target is node.target and base.args[2:] == node.args[2:] and not base.kwargs:
            older = base.args[0]
            if node.kwargs or not same_layout(base.meta["val"], older.meta["val"]):
                break
            base = older
        node.args = (base, *node.args[1:])
