"""The values that own storage which a block writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch.fx

from .._torch import OpOverload
from ..unsupported import Unsupported
from .block_propagation import writes_seen
from .functional_counterparts import written_arguments
from .kept_history import writes_unseen
from .layout import overlaps_itself
from .region_aliases import SharedValues
from .writes import block_writes, written_variables


def written_origins(graph: torch.fx.Graph, shared: SharedValues) -> set[torch.fx.Node]:
    """The origins that operators and regions of ``graph`` write to, and what these may be one with."""
    return {origin for node in graph.nodes for origin in origins_of_write(node, shared)}


def check_written_layouts(written: Iterable[torch.fx.Node]) -> None:
    """Raise :class:`Unsupported` for writes to what may have several elements in one place: no version has.

    Views that overlap themselves are refused where a write passes up through them.
    """
    for origin in written:
        value = origin.meta["val"]
        if overlaps_itself(value):
            raise Unsupported(
                "write to a tensor that overlaps itself",
                f"{origin.name}: shape {tuple(value.shape)}, strides {tuple(value.stride())}",
                "clone() the tensor before writing to it",
            )


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
        if writes_unseen(node):
            continue
        for variable in _seen_variables(node):
            if any(edge.is_unseen for edge in shared.aliases.path_to_origin(variable)):
                continue
            origin = shared.aliases.origin(variable)
            found.add(origin)
            found.update(shared.others(origin, shared.position[node]))
    return frozenset(found)


def _seen_variables(node: torch.fx.Node) -> Collection[torch.fx.Node]:
    if not isinstance(node.target, OpOverload):
        return writes_seen(node)
    return written_variables(node, written_arguments(node.target))
