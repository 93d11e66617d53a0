"""What regions write to: a loop's body writes to its parameters, which stand for what the loop begins with.

Parameters have fake tensors of their own, so writes to them don't show in the version counters outside; all
else that a block takes has the fake tensors that it has outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from ..._torch import storage_identity
from .purity import region_graphs, writes
from .versions import UNCOUNTED, version_of

_WHILE = torch.ops.higher_order.while_loop


def storages_written_in_regions(graph: torch.fx.Graph) -> set[int]:
    """The storages, of values of ``graph``, that its region operators may write to unseen by versions.

    A region's result may be one of its operands, so a write to it counts for all of these.
    """
    found: set[int] = set()
    for node in reversed(graph.nodes):
        regions = region_graphs(node)
        if not regions:
            continue
        results = node.meta.get("example_value", ())
        if any(map(_has_moved, results)) or found.intersection(storages(results)):
            found.update(storages([_value(operand) for operand in _operands(node)]))
        for region in regions:
            if writes(node):
                found |= _seen_outside(node, region)
    return found


def _seen_outside(node: torch.fx.Node, region: torch.fx.Graph) -> set[int]:
    """What of ``node``'s graph one of its blocks writes to."""
    inside = storages_written_in_regions(region)
    found = set(inside)
    parameters = region.find_nodes(op="placeholder")
    for parameter, operand in zip(parameters, _operands(node), strict=False):
        fake = _value(parameter)
        if _has_moved(fake) or inside.intersection(storages([fake])):
            found.update(storages([_value(operand)]))
    return found


def _operands(node: torch.fx.Node) -> list[Any]:
    """What a region operator's blocks are given, in the order of their placeholders."""
    if node.target is _WHILE:
        return [*node.args[2], *node.args[3]]  # type: ignore[misc]
    return list(node.args[3]) if len(node.args) > 3 else []  # type: ignore[arg-type]


def _value(operand: Any) -> Any:
    return operand.meta.get("example_value") if isinstance(operand, torch.fx.Node) else operand


def _has_moved(value: Any) -> bool:
    """Whether a tensor that a region is given or gives was written to; to have gradients it is, once."""
    if not isinstance(value, torch.Tensor):
        return False
    return version_of(value) == UNCOUNTED or version_of(value) > value.requires_grad


def storages(values: Iterable[Any]) -> list[int]:
    """Where the tensors among ``values`` have their elements, but for sparse ones, which no region takes."""
    return [
        storage_identity(value)
        for value in values
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    ]
