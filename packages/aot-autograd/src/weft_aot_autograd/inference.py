"""From a functional graph to the forward graph of a program that nobody differentiates."""

from __future__ import annotations

from weft_functionalize import FunctionalGraph, drop_gradient_rules

from ._torch import LazyGraphModule
from .decomposition_table import DecompositionTable, default_decompositions
from .joint_graph import ForwardGraph
from .joint_tracing import write_out_gradients
from .passes import overlap_collectives
from .regions import clean_regions, keep_partial_writes
from .tracing import cleaned_region, copied, simplify


def trace_inference(
    functional: FunctionalGraph,
    *,
    decompositions: DecompositionTable | None = None,
    reads_inputs_only: bool = False,
) -> ForwardGraph:
    """Decompose and clean up ``functional``, which itself stays as it is.

    Nodes keep fake values (``meta["val"]``) and stack traces.  ``decompositions`` defaults to
    :func:`default_decompositions`.  An operator without a rule stays.  ``reads_inputs_only``: nothing else
    reads more of the graph of ``functional`` than its inputs from now on, so that it becomes the result's.
    """
    table = default_decompositions() if decompositions is None else decompositions
    table = keep_partial_writes(table)
    functional = write_out_gradients(functional, decompositions=table)
    graph = functional.graph_module.graph
    if not reads_inputs_only:
        graph = copied(graph)
    drop_gradient_rules(graph)
    simplify(graph, table)
    overlap_collectives(graph)
    module = LazyGraphModule(functional.graph_module, graph, "ForwardGraph")
    clean_regions(module, table, cleaned_region)
    return ForwardGraph(module, functional.inputs, functional.outputs)
