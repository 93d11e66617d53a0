"""The values that own storage which a block writes."""

from __future__ import annotations

import torch.fx

from .._torch import OpOverload
from .alias_graph import AliasGraph
from .block_propagation import region_writes
from .functional_counterparts import written_arguments
from .rewrite_mutation import written_variables


def written_origins(graph: torch.fx.Graph, aliases: AliasGraph) -> set[torch.fx.Node]:
    """The origins that operators and regions of ``graph`` write to."""
    written: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            variables = written_variables(node, written_arguments(node.target))
            written.update(aliases.origin(variable) for variable in variables)
        written.update(aliases.origin(variable) for variable, _ in region_writes(node))
    return written
