"""Outputs and inputs of one graph that no gradient connects: each such component is a node of autograd's own.

One node for all would be visited for the gradient of any output, and all nodes behind it: hooks of tensors
that the output does not lead to would be called with None, and operators without a derivative would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.fx

from .joint_graph import PartitionedGraph


@dataclass(frozen=True)
class Component:
    """Results and arguments, by position, of which gradients lead to one another.

    The first component of a graph has the results without gradients too.
    """

    results: frozenset[int]
    arguments: frozenset[int]


def find_components(
    partitioned: PartitionedGraph, positions: dict[int, int], constants: Sequence[int]
) -> tuple[Component, ...]:
    """The components, none if all is connected; ``positions`` of arguments by index of the graph's inputs."""
    reached = {d.graph_index: d.reached for d in partitioned.outputs}
    groups: list[tuple[set[int], set[int]]] = []
    for tangent, read in zip(partitioned.tangents, _gradients_of(partitioned), strict=True):
        inputs = reached[tangent.output_index]
        if inputs is None:
            return ()
        results, arguments = (
            {tangent.output_index},
            {positions[i] for i in inputs if i in positions},
        )
        arguments |= {positions[partitioned.gradients[k].input_index] for k in read}
        for group in [group for group in groups if group[1] & arguments]:
            groups.remove(group)
            results |= group[0]
            arguments |= group[1]
        groups.append((results, arguments))
    if len(groups) < 2:
        return ()
    groups[0][0].update(constants)
    return tuple(Component(frozenset(r), frozenset(a)) for r, a in groups)


def _gradients_of(partitioned: PartitionedGraph) -> list[set[int]]:
    """By tangent: which gradients are computed from it."""
    graph = partitioned.backward.graph
    placeholders = graph.find_nodes(op="placeholder")[len(partitioned.saved) :]
    tangents = {node: {k} for k, node in enumerate(placeholders)}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            tangents[node] = set[int]().union(*(tangents.get(a, ()) for a in node.all_input_nodes))
    (output,) = graph.find_nodes(op="output")
    found: list[set[int]] = [set() for _ in placeholders]
    for k, node in enumerate(output.args[0]):
        for tangent in tangents.get(node, ()) if isinstance(node, torch.fx.Node) else ():
            found[tangent].add(k)
    return found
