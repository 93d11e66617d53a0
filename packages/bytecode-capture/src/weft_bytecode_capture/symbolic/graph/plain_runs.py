"""Which captured graphs cannot run as they are, since torch's operators for control flow take less."""

from __future__ import annotations

import torch
import torch.fx

from ..._torch import storage_identity
from .purity import REGION_OPERATORS, region_graphs, writes
from .storages import node_values


def refused_by_torch(graph_module: torch.fx.GraphModule) -> str | None:
    """What torch's ``cond`` and ``while_loop`` refuse of a captured graph when it runs; None: nothing."""
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            reason = _refused(node) if node.target in REGION_OPERATORS else None
            if reason is not None:
                return f"torch's {node.target} takes no {reason}"
    return None


def _refused(node: torch.fx.Node) -> str | None:
    operands = node_values(node.all_input_nodes)
    if any(isinstance(operand, (float, torch.SymFloat)) for operand in operands):
        return "floats"
    trains = any(isinstance(o, torch.Tensor) and o.requires_grad for o in operands)
    if not trains:
        return None
    if node.target is torch.ops.higher_order.while_loop:
        return "gradients"
    if writes(node):
        return "writes where gradients are recorded"
    shared = any(map(_shares_memory, region_graphs(node)))
    return "results that share memory where gradients are recorded" if shared else None


def _shares_memory(region: torch.fx.Graph) -> bool:
    """Whether a region's result may be in the memory of an operand, or of another result."""
    results: list[torch.fx.Node] = []
    torch.fx.map_arg(region.output_node().args, results.append)
    operands = [*region.find_nodes(op="placeholder"), *region.find_nodes(op="get_attr")]
    left, before = map(_storages, (results, operands))
    return len(set(left)) < len(left) or not set(left).isdisjoint(before)


def _storages(nodes: list[torch.fx.Node]) -> list[int]:
    values = node_values(nodes)
    return [storage_identity(value) for value in values if isinstance(value, torch.Tensor)]
