"""How far results are from those in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

FACTOR = 3.0
"""How many times eager's distance from float64 counts as no worse: sums in other orders differ by that."""


def copied(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, to be changed."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return torch.fx.GraphModule(graph_module, graph)


def doubled(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with its tensors, and what it converts to, in float64."""
    doubled = copied(copy.deepcopy(graph_module)).double()
    for node in doubled.graph.nodes:
        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), _wider)
        node.args, node.kwargs = args, kwargs
    doubled.recompile()
    return doubled


def _wider(value: Any) -> Any:
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_float else value


def widened(inputs: Sequence[Any]) -> list[Any]:
    """Inputs with floating-point tensors in float64."""
    return [_as_double(value) for value in inputs]


def _as_double(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def distance(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The greatest relative distance of a result: infinite where kinds or special values differ."""
    worst = 0.0
    for value, reference in zip(found, exact, strict=True):
        if not value.is_floating_point():
            worst = max(
                worst, 0.0 if torch.equal(value, reference.to(value.dtype)) else float("inf")
            )
            continue
        difference = (value.double() - reference.double()).nan_to_num(0.0, 0.0, 0.0)
        if not torch.equal(value.isnan(), reference.isnan()):
            return float("inf")
        finite = reference.double()[reference.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        worst = max(
            worst, float(difference.abs().max()) / max(scale, 1e-30) if value.numel() else 0.0
        )
    return worst


def resolution(values: Sequence[torch.Tensor]) -> float:
    """Eight units in the last place of the coarsest result."""
    return max((8 * torch.finfo(v.dtype).eps for v in values if v.is_floating_point()), default=0.0)
