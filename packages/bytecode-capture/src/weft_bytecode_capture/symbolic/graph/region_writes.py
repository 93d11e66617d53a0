"""What regions write to: a loop's body writes to its parameters, which stand for what the loop begins with.

Parameters have fake tensors of their own, so writes to them don't show in the version counters outside; all
else that a block takes has the fake tensors that it has outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.fx

from ..._torch import storage_identity
from .purity import region_graphs, writes
from .versions import UNCOUNTED, version_of

_OPERANDS = {torch.ops.higher_order.cond: (3,), torch.ops.higher_order.while_loop: (2, 3)}
"""The arguments that hold what a region operator's blocks are given; a scan writes to nothing."""


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
        if any(map(_has_moved, results)) or found & storages(results):
            found.update(storages([_value(operand) for operand in _operands(node)]))
        if writes(node):
            found.update(*(_seen_outside(node, region) for region in regions))
    return found


def _seen_outside(node: torch.fx.Node, region: torch.fx.Graph) -> set[int]:
    """What of ``node``'s graph one of its blocks writes to."""
    inside = storages_written_in_regions(region)
    found = set(inside)
    parameters = region.find_nodes(op="placeholder")
    for parameter, operand in zip(parameters, _operands(node), strict=False):
        fake = _value(parameter)
        if _has_moved(fake) or inside & storages([fake]):
            found.update(storages([_value(operand)]))
    return found


def _operands(node: torch.fx.Node) -> list[Any]:
    """What a region operator's blocks are given, in the order of their placeholders."""
    arguments, target = cast("Any", node.args), cast("Any", node.target)
    return [operand for k in _OPERANDS.get(target, ()) for operand in arguments[k]]


def _value(operand: Any) -> Any:
    return operand.meta.get("example_value") if isinstance(operand, torch.fx.Node) else operand


def _has_moved(value: Any) -> bool:
    """Whether a tensor that a region is given or gives was written to; to have gradients it is, once."""
    if not isinstance(value, torch.Tensor):
        return False
    return version_of(value) == UNCOUNTED or version_of(value) > value.requires_grad


def storages(values: Iterable[Any]) -> set[int]:
    """Where the tensors among ``values`` have their elements."""
    return {storage_identity(value) for value in values if isinstance(value, torch.Tensor)}
