"""Histories of what a write may reach by another name, as data says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from .gradient_history import Sources
from .tensor_map import map_tensors
from .tensor_ssa.alias_graph import build_alias_graph
from .tensor_ssa.region_aliases import RegionAlias, SharedValues
from .unsupported import Unsupported

Gain = tuple[torch.Tensor, Sources]
"""A tensor, and what it has gradients to from a write on."""


def reached_by_write(
    graph: torch.fx.Graph,
    pairs: Sequence[RegionAlias],
    written: torch.fx.Node,
    sources: Sequence[torch.Tensor],
) -> list[Gain]:
    """What may be one with ``written``, to which an operator or a region writes; and what each gains.

    ``sources`` are what the new values have gradients to: nothing where autograd does not see the write.
    ``pairs`` are the regions' results in ``graph``.

    :raises Unsupported: data would decide whether a tensor has gradients.
    """
    aliases = build_alias_graph(graph)
    shared = SharedValues(graph, aliases, pairs)
    origin = aliases.origin(written)
    reached: list[Gain] = []
    for node in shared.others(origin, len(shared.position)):
        other: torch.Tensor = node.meta["val"]
        gains = bool(sources) and shared.seen(origin, node) is not False
        if gains and not other.requires_grad:
            raise Unsupported("write of what has gradients to a tensor without, as data says")
        reached.append((other, Sources([], sources if gains else [])))
    return reached


def operator_sources(arguments: Any) -> list[torch.Tensor]:
    """The tensors among an operator's ``arguments`` that what it writes has gradients to."""
    operands: list[torch.Tensor] = []
    map_tensors(arguments, operands.append)
    return [o for o in operands if o.requires_grad] if torch.is_grad_enabled() else []
