"""The values that own storage which a block writes."""

from __future__ import annotations

import torch.fx

from .region_aliases import SharedValues
from .writes import block_writes


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
