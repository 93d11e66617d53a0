"""Control-flow dependencies: what a region's result may be one with.

The result of a branch may be the operand that one side returns as it is: such names may alias, while
TensorSSA handles memory dependencies, which must.  As long as nobody can tell, the result is a value of its
own; a write that would show through the other name is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch.fx

from .._torch import OpOverload
from ..unsupported import Unsupported
from .alias_graph import AliasGraph
from .block_propagation import region_clobbers, region_writes
from .functional_counterparts import written_arguments
from .rewrite_mutation import written_variables

Pair = tuple[torch.fx.Node, torch.fx.Node]


class ClobberedOperand(Unsupported):
    """A loop writes to what it begins with, which is used after it."""

    def __init__(self, name: str) -> None:
        super().__init__("write to a carried tensor that is used after the loop", name)


def check_region_aliases(
    graph: torch.fx.Graph,
    aliases: AliasGraph,
    pairs: Sequence[Pair],
    kept: Iterable[torch.fx.Node],
    given_away: Collection[torch.fx.Node] = (),
) -> None:
    """Raise :class:`Unsupported` where a value is written while another that it may be is still used.

    ``pairs`` are a result and what it may be; ``kept`` the values that are needed after the graph's end.  So
    are all placeholders but those ``given_away``: what a loop carries is of no use after the iteration.
    """
    clobbers = [(node, other) for node in graph.nodes for other in region_clobbers(node)]
    if not pairs and not clobbers:
        return
    position = {node: index for index, node in enumerate(graph.nodes)}
    inputs = [n for n in graph.find_nodes(op="placeholder") if n not in given_away]
    last = _last_uses(aliases, position, [*inputs, *kept])
    groups = _groups(aliases, pairs)
    for node, index in position.items():
        for variable in _written(node):
            origin = aliases.origin(variable)
            for other in groups.get(origin, ()):
                if other is not origin and position[other] < index < last.get(other, -1):
                    raise Unsupported(
                        "write to a tensor that a region may return", f"{origin.name}, {other.name}"
                    )
    for node, clobbered in clobbers:
        origin = aliases.origin(clobbered)
        for other in groups.get(origin, {origin}):
            if position[other] < position[node] < last.get(other, -1):
                raise ClobberedOperand(other.name)


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    written = [variable for variable, _ in region_writes(node)]
    if isinstance(node.target, OpOverload):
        written += written_variables(node, written_arguments(node.target))
    return written


def _last_uses(
    aliases: AliasGraph,
    position: dict[torch.fx.Node, int],
    kept: Iterable[torch.fx.Node],
) -> dict[torch.fx.Node, float]:
    """By origin, the last node that uses it or a view of it; what the caller sees is used to the end."""
    last: dict[torch.fx.Node, float] = {}
    for node, index in position.items():
        for used in node.all_input_nodes:
            last[aliases.origin(used)] = index
    for node in kept:
        last[aliases.origin(node)] = float("inf")
    return last


def _groups(aliases: AliasGraph, pairs: Sequence[Pair]) -> dict[torch.fx.Node, set[torch.fx.Node]]:
    """Each origin's set of origins that may be one with it, through any chain of pairs."""
    groups: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for pair in pairs:
        joined: set[torch.fx.Node] = set()
        for node in pair:
            origin = aliases.origin(node)
            joined |= groups.get(origin, {origin})
        groups.update(dict.fromkeys(joined, joined))
    return groups
