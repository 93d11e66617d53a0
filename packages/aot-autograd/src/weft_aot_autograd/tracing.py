"""From a functional graph to graphs of the operators that later stages take."""

from __future__ import annotations

import torch
import torch.fx
from weft_functionalize import drop_gradient_rules

from ._torch import FakeTensor, FakeTensorMode, OpOverload
from .decomposition_table import DecompositionTable
from .passes import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
    remove_identities,
)
from .splice import splice


def simplify(
    graph: torch.fx.Graph, table: DecompositionTable, *, keep_copies: bool = False
) -> None:
    """Decompose ``graph`` in place and clean it up; its output node is a flat tuple of nodes.

    ``keep_copies``: what is copied may be written to, so that the copy is another value.
    """
    _clean(graph, table, keep_copies=keep_copies)
    (output,) = graph.find_nodes(op="output")
    output.meta["val"] = tuple(node.meta["val"] for node in output.args[0])


def cleaned_region(region: torch.fx.Graph, table: DecompositionTable) -> torch.fx.Graph:
    """A decomposed copy of a region's graph without what is not needed."""
    graph = copied(region)
    drop_gradient_rules(graph)
    _clean(graph, table)
    return graph


def _clean(graph: torch.fx.Graph, table: DecompositionTable, *, keep_copies: bool = False) -> None:
    _decompose(graph, table)
    remove_identities(graph, keep_copies=keep_copies)
    eliminate_common_subexpressions(graph)
    eliminate_dead_code(graph)
    graph.lint()


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode | None:
    """The mode of the graph's fake values, None if it has no tensor."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def copied(source: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of a graph, whose nodes have the same metadata."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in source.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph


def _decompose(graph: torch.fx.Graph, table: DecompositionTable) -> None:
    """Replace the nodes that have a rule; only these are traced."""
    selected = [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and node.target in table
    ]
    mode = fake_mode_of(graph)
    if not selected or mode is None:
        return
    with torch.no_grad(), mode:
        for node in selected:
            splice(node, table)
