"""Which captured graphs cannot run as they are, since torch's operators for control flow take less."""

from __future__ import annotations

import torch
import torch.fx

from .purity import REGION_OPERATORS, writes


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
    operands = [operand.meta.get("example_value") for operand in node.all_input_nodes]
    if any(isinstance(operand, (float, torch.SymFloat)) for operand in operands):
        return "floats"
    trains = any(isinstance(o, torch.Tensor) and o.requires_grad for o in operands)
    return "writes where gradients are recorded" if trains and writes(node) else None
