"""Builds the forward and the backward graph from a joint graph and the values to save."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
import torch.fx

from .._torch import LazyGraphModule, OpOverload
from ..joint_graph import JointGraph, PartitionedGraph, SavedDescriptor
from ..passes.collectives import overlap_collectives
from ..passes.dead_code import is_impure
from ..passes.storage_origins import storage_origin
from ..recording import COMPUTED_IN_BACKWARD
from .sides import Sides

aten = torch.ops.aten


def split(joint: JointGraph, sides: Sides, saved: Sequence[torch.fx.Node]) -> PartitionedGraph:
    """Forward returns the outputs, then what of ``saved`` is neither input nor output."""
    forward = _Forward(sides, saved)
    backward, recomputed = _backward(sides, saved, forward.copied)
    return PartitionedGraph(
        LazyGraphModule(joint.graph_module, forward.graph, "Forward"),
        LazyGraphModule(joint.graph_module, backward, "Backward"),
        joint.inputs,
        joint.outputs,
        joint.output_count,
        tuple(forward.saved),
        joint.tangents,
        joint.gradients,
        recomputed,
        joint.flags,
        joint.missing,
    )


class _Forward:
    """The forward graph, and where each saved value is found among its inputs and outputs."""

    def __init__(self, sides: Sides, saved: Sequence[torch.fx.Node]) -> None:
        self.graph = torch.fx.Graph()
        self.saved: list[SavedDescriptor] = []
        # Of saved values that are copied what their copies are, which have no gaps and repeat no elements.
        self.copied: dict[torch.fx.Node, Any] = {}
        self._sides = sides
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        effects = [
            n
            for n in sides.forward
            if n.op == "call_function" and is_impure(n) and COMPUTED_IN_BACKWARD not in n.meta
        ]
        needed = ancestors([*sides.outputs, *saved, *effects], stop=())
        for node in sides.forward:
            if node in needed or node.op == "placeholder":
                self._copies[node] = self.graph.node_copy(node, self._copies.__getitem__)
        returned = [self._copies[node] for node in sides.outputs]
        self._taken = {storage_origin(node) for node in sides.outputs}
        for node in saved:
            self.saved.append(self._save(node, returned))
        _finish(self.graph, returned)

    def _save(self, node: torch.fx.Node, returned: list[torch.fx.Node]) -> SavedDescriptor:
        nbytes = self._sides.nbytes(node)
        if self._sides.is_free(node):
            return SavedDescriptor(self._sides.inputs.index(node), None, nbytes)
        if node in self._sides.outputs and node not in self._sides.exposed:
            return SavedDescriptor(None, self._sides.outputs.index(node), nbytes)
        origin, copy = storage_origin(node), self._copies[node]
        if node.op == "placeholder" or origin in self._taken:
            # Memory that the caller may write to before backward.
            copy = self.graph.call_function(aten.clone.default, (copy,))
            copy.meta["val"] = self.copied[node] = _copied(node.meta["val"])
        self._taken.add(origin)
        returned.append(copy)
        return SavedDescriptor(None, len(returned) - 1, nbytes)


def _copied(value: Any) -> Any:
    with value.fake_mode, torch.no_grad():
        copy = value.clone()
    return value if copy.stride() == value.stride() else copy


def _backward(
    sides: Sides, saved: Sequence[torch.fx.Node], copied: Mapping[torch.fx.Node, Any]
) -> tuple[torch.fx.Graph, tuple[str, ...]]:
    """The backward graph; what it computes again comes just before its first reader."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in [*saved, *sides.tangents]:
        copies[node] = graph.placeholder(node.name)
        copies[node].target = copies[node].name
        copies[node].meta.update(node.meta)
        if node in copied:
            copies[node].meta["val"] = copied[node]
    recomputed: list[str] = []
    order = {node: index for index, node in enumerate(sides.forward)}
    needed = ancestors(sides.gradients, stop=copies)
    needed |= {node for node in sides.backward if _checks(node, needed)}
    needed = ancestors(needed, stop=copies)
    for node in _graph_of(sides).nodes:
        if (node in sides.backward and node in needed) and node not in copies:
            _copy_with_arguments(graph, node, copies, order, recomputed)
    for node in sides.gradients:
        _copy_with_arguments(graph, node, copies, order, recomputed)
    _finish(graph, [copies[node] for node in sides.gradients])
    return graph, tuple(recomputed)


def _checks(node: torch.fx.Node, needed: Collection[torch.fx.Node]) -> bool:
    """Whether a node only raises an error, by results of calls that are needed anyway."""
    calls = {a.args[0] if a.target is getitem else a for a in node.all_input_nodes}
    returns_nothing = isinstance(node.target, OpOverload) and not node.target._schema.returns
    return returns_nothing and calls <= set(needed)


def _copy_with_arguments(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    copies: dict[torch.fx.Node, torch.fx.Node],
    order: Mapping[torch.fx.Node, int],
    recomputed: list[str],
) -> None:
    if node in copies:
        return
    missing = ancestors([node], stop=copies) - {node}
    for argument in sorted(missing, key=order.__getitem__):
        copies[argument] = graph.node_copy(argument, copies.__getitem__)
        recomputed.append(argument.name)
    copies[node] = graph.node_copy(node, copies.__getitem__)


def ancestors(nodes: Iterable[torch.fx.Node], stop: Container[torch.fx.Node]) -> set[torch.fx.Node]:
    """``nodes`` and what they are computed from, up to and without ``stop``."""
    pending = [node for node in nodes if node not in stop]
    seen = set(pending)
    while pending:
        for argument in pending.pop().all_input_nodes:
            if argument not in seen and argument not in stop:
                seen.add(argument)
                pending.append(argument)
    return seen


def _graph_of(sides: Sides) -> torch.fx.Graph:
    return sides.tangents[0].graph


def _finish(graph: torch.fx.Graph, returned: list[torch.fx.Node]) -> None:
    output = graph.output(tuple(returned))
    output.meta["val"] = tuple(node.meta["val"] for node in returned)
    overlap_collectives(graph)
    graph.lint()
