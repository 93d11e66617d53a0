"""Calls that code makes before it calls the graph: of functions whose gradients no graph holds.

An embedding with sparse gradients looks up rows by indices that the frame is given, or computes from what it
is given.  Eager makes the call on entry of the frame, with what computes the indices, and the graph takes the
rows: their history, and the sparse gradient, are eager's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from weft_guards import Source

from .... import _frame_hook
from ...._torch import HigherOrderOperator
from ....sources import CalledSource
from ...graph.purity import draws, has_effect
from ...graph.storages import version_of
from ...protocol import Evaluator
from .tensor import TensorVariable


def call_on_entry(evaluator: Evaluator, result: TensorVariable) -> bool:
    """Let a result, the last node of the graph, be computed before it; False where that is not the same."""
    graph = evaluator.graph
    if graph.is_in_region or graph.transforms.active or graph.modes.changed():
        return False
    if graph.in_handled_code or evaluator.side_effects:
        return False  # an index out of range is handled, or something has been done before
    node, fake = result.node, result.fake
    computed = computed_from(node)
    sources = {given: _source(evaluator, given) for given in computed if _is_given(given)}
    if any(source is None for source in sources.values()):
        return False
    if not all(given in sources or is_movable(given) for given in computed[:-1]):
        return False  # whether the call itself writes, as with max_norm, the versions tell
    call = _frame_hook.disabled(function_of(computed, node))
    source = CalledSource(call, tuple(filter(None, sources.values())))
    result.node = graph.add_placeholder(source, fake)
    result.loaded_instead = TensorVariable(result.node, fake, source)
    graph.outermost.erase_node(node)
    return True


def computed_from(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that ``node`` depends on, and itself, in the order of the graph."""
    found, pending = {node}, [node]
    while pending:
        fresh = [given for given in pending.pop().all_input_nodes if given not in found]
        found.update(fresh)
        pending += fresh
    return [known for known in node.graph.nodes if known in found]


def _is_given(node: torch.fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def _source(evaluator: Evaluator, node: torch.fx.Node) -> Source | None:
    """Where a tensor from outside is found; None for one that the graph has written to, or that is new."""
    graph, fake = evaluator.graph, node.meta.get("example_value")
    for source, _, known in graph.given:
        if known is fake and version_of(known) == graph.first_versions.get(node):
            return source
    return None


def is_movable(node: torch.fx.Node) -> bool:
    """Whether a node computes the same before the graph as in it."""
    depends_on_data = "data_dependent" in node.meta or "checks" in node.meta
    return not depends_on_data and only_computes(node)


def only_computes(node: torch.fx.Node) -> bool:
    """Whether a node does nothing but to give the same for the same operands."""
    is_region = isinstance(node.target, HigherOrderOperator)
    return not (is_region or has_effect(node) or draws(node))


def function_of(nodes: Iterable[torch.fx.Node], last: torch.fx.Node) -> Callable[..., Any]:
    """What ``last`` gives, as a function of the tensors from outside among ``nodes``."""
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in nodes:
        if _is_given(node):
            copies[node] = graph.placeholder(node.name)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[last])
    run: Callable[..., Any] = torch.fx.GraphModule(torch.nn.Module(), graph).forward
    return run
