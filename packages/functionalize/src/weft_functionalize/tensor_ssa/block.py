"""Blocks: the straight-line pieces of a program with nested control flow (paper section 2.1).

An FX graph is a block, and so is each graph that one of its control-flow operators runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from .._torch import HigherOrderOperator


def blocks_of(graph: torch.fx.Graph) -> list[torch.fx.Graph]:
    """``graph`` and all graphs below it, each before those that its operators run."""
    found = [graph]
    for block in found:
        for node in block.nodes:
            if isinstance(node.target, HigherOrderOperator):
                found.extend(region_graphs(node))
    return found


def region_graphs(node: torch.fx.Node) -> Iterator[torch.fx.Graph]:
    """The graphs that a control-flow operator's node runs."""
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            module = node.graph.owning_module
            # While the graph has no owner, the node itself knows its region.
            known = argument.meta.get("val")
            body = known if module is None else module.get_submodule(str(argument.target))
            if isinstance(body, torch.fx.GraphModule):
                yield body.graph
