"""The values that own storage which a block writes."""

from __future__ import annotations

import torch
import torch.fx

from .._torch import OpOverload
from .alias_graph import AliasGraph
from .block_propagation import region_writes
from .functional_counterparts import written_arguments
from .kept_history import runs_unseen
from .region_aliases import SharedValues
from .writes import block_writes, written_variables

aten = torch.ops.aten


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


def seen_region_writes(graph: torch.fx.Graph, aliases: AliasGraph) -> frozenset[torch.fx.Node]:
    """The values whose storage regions write that run with gradients enabled."""
    return frozenset(
        aliases.origin(variable)
        for node in graph.nodes
        if not runs_unseen(node)
        for variable, _ in region_writes(node)
    )


def unrecorded_origins(graph: torch.fx.Graph, aliases: AliasGraph) -> frozenset[torch.fx.Node]:
    """The values whose storage is written with gradients disabled or through a detached view."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        for variable in written_variables(node, written_arguments(node.target)):
            path = [node, *(edge.access for edge in aliases.path_to_origin(variable))]
            if any(runs_unseen(n) or n.target is aten.detach.default for n in path):
                found.add(aliases.origin(variable))
    return frozenset(found)
