"""Nodes of autograd's graph whose results are a list, each made of its own operands (``_foreach_mul``).

To autograd all of them come from one node.  Backward gives a gradient to the operands of those results alone
that have one, so that a result of such a node has to be told from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ._torch import result_count_of_node


@dataclass(frozen=True)
class ListResult:
    """One of several results of ``function``, by its number."""

    function: Any
    number: int


Place = Any
"""A node of autograd's graph, with all of its results, or a :class:`ListResult`."""


def place_of(tensor: torch.Tensor) -> Place:
    """Where a tensor that requires gradients has them from."""
    edge = get_gradient_edge(tensor)
    return _place_at(edge.node, edge.output_nr)


def _place_at(function: Any, number: int) -> Place:
    is_list = function.name().startswith("Foreach") and result_count_of_node(function) > 1
    return ListResult(function, number) if is_list else function


def function_at(place: Place) -> Any:
    """The node itself."""
    return place.function if isinstance(place, ListResult) else place


def edges_of(place: Place) -> Sequence[tuple[Any, int]]:
    """The edges by which gradients go on from ``place``: nodes, None for constants, and numbers of results.

    A node of lists has an edge for each tensor of the first list, then of the next, then for a tensor that
    all have in common.
    """
    edges: Sequence[tuple[Any, int]] = function_at(place).next_functions
    if not isinstance(place, ListResult):
        return edges
    count = result_count_of_node(place.function)
    common = len(edges) - len(edges) % count
    return [e for k, e in enumerate(edges) if k >= common or k % count == place.number]


def places_behind(place: Place) -> tuple[Place, ...]:
    """What ``place`` leads to, constants apart."""
    return tuple(_place_at(f, number) for f, number in edges_of(place) if f is not None)
