"""The graphs that control-flow operators run go through the same clean-ups as the graph around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from .decomposition_table import DecompositionTable, Without

aten = torch.ops.aten

_PARTIAL_WRITES = (aten.select_scatter.default, aten.slice_scatter.default)

CleanUp = Callable[[torch.fx.Graph, DecompositionTable], torch.fx.Graph]


def keep_partial_writes(table: DecompositionTable) -> DecompositionTable:
    """``table`` without rules for writes to a part: in place these need not go over the whole tensor."""
    return Without(table, _PARTIAL_WRITES)


def clean_regions(
    module: torch.fx.GraphModule, table: DecompositionTable, clean_up: CleanUp
) -> None:
    """Replace each region of ``module``, nested ones included, by a cleaned-up copy of its own."""
    for node in module.graph.find_nodes(op="get_attr"):
        region: Any = getattr(module, str(node.target), None)
        if isinstance(region, torch.fx.GraphModule):
            cleaned = torch.fx.GraphModule(region, clean_up(region.graph, table), "Region")
            clean_regions(cleaned, table, clean_up)
            setattr(module, str(node.target), cleaned)
            node.meta["val"] = cleaned
