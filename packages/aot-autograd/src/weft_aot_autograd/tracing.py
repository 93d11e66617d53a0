"""From a functional graph to graphs of the operators that later stages take."""

from __future__ import annotations

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, drop_gradient_rules

from ._torch import FakeTensor, FakeTensorMode, LazyGraphModule, OpOverload
from .decomposition_table import DecompositionTable, default_decompositions
from .joint_graph import ForwardGraph
from .passes import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
    overlap_collectives,
    remove_identities,
)
from .regions import clean_regions, keep_partial_writes
from .splice import splice


def trace_inference(
    functional: FunctionalGraph, *, decompositions: DecompositionTable | None = None
) -> ForwardGraph:
    """Decompose and clean up ``functional``, which itself stays as it is.

    Nodes keep fake values (``meta["val"]``) and stack traces.  ``decompositions`` defaults to
    :func:`default_decompositions`.  An operator without a rule stays.
    """
    table = default_decompositions() if decompositions is None else decompositions
    table = keep_partial_writes(table)
    graph = _copy(functional.graph_module.graph)
    drop_gradient_rules(graph)
    simplify(graph, table)
    overlap_collectives(graph)
    module = LazyGraphModule(functional.graph_module, graph, "ForwardGraph")
    clean_regions(module, table, cleaned_region)
    return ForwardGraph(module, functional.inputs, functional.outputs)


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
    graph = _copy(region)
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


def _copy(source: torch.fx.Graph) -> torch.fx.Graph:
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
