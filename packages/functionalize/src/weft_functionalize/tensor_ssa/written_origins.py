"""The values that own storage which a block writes."""

from __future__ import annotations

from collections.abc import Collection

import torch.fx

from .._torch import OpOverload
from .block_propagation import writes_seen
from .custom_operators import is_custom
from .functional_counterparts import written_arguments
from .kept_history import hides_writes, runs_unseen
from .region_aliases import SharedValues
from .writes import block_writes, written_variables


def written_origins(graph: torch.fx.Graph, shared: SharedValues) -> set[torch.fx.Node]:
    """The origins that operators and regions of ``graph`` write to, and what these may be one with."""
    return {origin for node in graph.nodes for origin in origins_of_write(node, shared)}


def origins_of_write(node: torch.fx.Node, shared: SharedValues) -> set[torch.fx.Node]:
    """The origins that ``node`` writes to, and what these may be one with."""
    found: set[torch.fx.Node] = set()
    for variable in block_writes(node):
        origin = shared.aliases.origin(variable)
        found.add(origin)
        found.update(shared.others(origin, shared.position[node]))
    return found


def seen_origins(graph: torch.fx.Graph, shared: SharedValues) -> frozenset[torch.fx.Node]:
    """The origins that ``graph`` writes to with autograd looking on, and what these may be one with."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if runs_unseen(node):
            continue
        for variable in _seen_variables(node):
            if any(map(hides_writes, shared.aliases.path_to_origin(variable))):
                continue
            origin = shared.aliases.origin(variable)
            found.add(origin)
            found.update(shared.others(origin, shared.position[node]))
    return frozenset(found)


def _seen_variables(node: torch.fx.Node) -> Collection[torch.fx.Node]:
    if not isinstance(node.target, OpOverload):
        return writes_seen(node)
    if is_custom(node.target):
        return ()
    return written_variables(node, written_arguments(node.target))
