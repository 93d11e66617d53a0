"""Backward in segments, so that the gradients of one are on their way while the next is computed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx
from weft_functionalize import SYMBOLIC_TYPES

from .._torch import LazyGraphModule
from ..joint_graph import PartitionedGraph
from ..passes.storage_origins import storage_origin

MAX_SEGMENTS = 12
"""Of one backward: what is sent behind the last one, while nothing is computed, is a twelfth then.

Each cut keeps kernels from being fused, holds what crosses it, and is a program more to be launched.
"""


@dataclass(frozen=True)
class BackwardSegment:
    """A part of backward that computes some of the gradients.

    ``inputs`` are positions among the values so far: the backward graph's inputs, then what each earlier
    segment has kept.  The graph returns the gradients at the positions ``gradients`` of
    :attr:`PartitionedGraph.gradients`, then what it keeps for later segments.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[int, ...]
    gradients: tuple[int, ...]


def segment_backward(partitioned: PartitionedGraph, nbytes: int) -> tuple[BackwardSegment, ...]:
    """Cut the backward graph where ``nbytes`` of parameters' gradients have been computed, and again.

    Where that is more than :data:`MAX_SEGMENTS`, of as many bytes each.  Gradients come in the order in which
    the graph computes them; those of user inputs are in the last segment.  A graph with symbolic sizes is one
    segment.
    """
    graph = partitioned.backward.graph
    if any(isinstance(node.meta["val"], SYMBOLIC_TYPES) for node in graph.nodes):
        nbytes = sys.maxsize
    (output,) = graph.find_nodes(op="output")
    gradients: list[torch.fx.Node] = list(output.args[0])
    groups = _groups(partitioned, gradients, nbytes)
    values = graph.find_nodes(op="placeholder")
    segments = []
    done = set(values)
    for number, group in enumerate(groups):
        wanted = [gradients[k] for k in group]
        nodes = _missing(wanted, done)
        done |= nodes
        later = [gradients[k] for other in groups[number + 1 :] for k in other]
        kept = _kept(nodes, later, done)
        segments.append(_segment(graph, nodes, values, group, wanted, kept))
        values = [*values, *kept]
    return tuple(segments)


def _groups(
    partitioned: PartitionedGraph, gradients: Sequence[torch.fx.Node], nbytes: int
) -> list[list[int]]:
    order = {node: k for k, node in enumerate(partitioned.backward.graph.nodes)}
    of_parameters: list[int] = []
    others: list[int] = []
    for k, descriptor in enumerate(partitioned.gradients):
        is_user_input = partitioned.inputs[descriptor.input_index].position is not None
        (others if is_user_input else of_parameters).append(k)
    of_parameters.sort(key=lambda k: order[gradients[k]])
    sizes = {k: gradients[k].meta["val"].nbytes for k in of_parameters}
    nbytes = max(nbytes, -(-sum(sizes.values()) // MAX_SEGMENTS))
    groups: list[list[int]] = [[]]
    filled = 0
    for k in of_parameters:
        if filled >= nbytes:
            groups.append([])
            filled = 0
        groups[-1].append(k)
        filled += sizes[k]
    groups[-1] += others
    return groups


def _missing(wanted: Sequence[torch.fx.Node], done: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """What is still to compute for ``wanted``; all results of an operator come together."""
    pending = [node for node in wanted if node not in done]
    found = set(pending)
    while pending:
        node = pending.pop()
        related = list(node.all_input_nodes)
        if not isinstance(node.meta["val"], torch.Tensor):
            related += list(node.users)  # the items of a tuple
        for other in related:
            if other not in done and other not in found:
                found.add(other)
                pending.append(other)
    return found


def _kept(
    nodes: set[torch.fx.Node], later: Sequence[torch.fx.Node], done: set[torch.fx.Node]
) -> list[torch.fx.Node]:
    """Those of ``nodes`` that later segments read or return, in a fixed order."""
    needed = set(later)
    kept = [
        node
        for node in nodes
        if isinstance(node.meta["val"], torch.Tensor)
        and (node in needed or any(u not in done and u.op != "output" for u in node.users))
    ]
    return sorted(kept, key=lambda node: node.name)


def _segment(
    graph: torch.fx.Graph,
    nodes: set[torch.fx.Node],
    values: Sequence[torch.fx.Node],
    group: Sequence[int],
    wanted: Sequence[torch.fx.Node],
    kept: Sequence[torch.fx.Node],
) -> BackwardSegment:
    read = {a for node in nodes for a in node.all_input_nodes} | {*wanted, *kept}
    inputs = [k for k, value in enumerate(values) if value in read]
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for k in inputs:
        copies[values[k]] = copy.placeholder(values[k].name)
        copies[values[k]].meta.update(values[k].meta)
    for node in graph.nodes:
        if node in nodes:
            copies[node] = copy.node_copy(node, copies.__getitem__)
    returned = [
        copies[node] if node in nodes else owned_copy(copy, copies[node]) for node in wanted
    ]
    given_away = {storage_origin(node) for node in returned}
    returned += [
        owned_copy(copy, copies[node])
        if storage_origin(copies[node]) in given_away
        else copies[node]
        for node in kept
    ]
    output = copy.output(tuple(returned))
    output.meta["val"] = tuple(node.meta["val"] for node in returned)
    copy.lint()
    module = LazyGraphModule(torch.nn.Module(), copy, "BackwardSegment")
    return BackwardSegment(module, tuple(inputs), tuple(group))


def owned_copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """A copy of the node's value: who gets a gradient may write to it."""
    owned = graph.call_function(torch.ops.aten.clone.default, (node,))
    value = node.meta["val"]
    with value.fake_mode, torch.no_grad():
        owned.meta["val"] = value.clone()
    return owned
