"""Backward where only some of the outputs have a gradient: without what the others' would have gone through.

A gradient that is not there is not one of zeros: zero times infinity is NaN, and what eager's autograd does
not visit may have been written to since.  Backward is linear in the gradients it is given, so a value that
depends on absent ones only is absent too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, is_gradient_rule, known_equal, symbols_of

from ._torch import LazyGraphModule, OpOverload
from .joint_graph import PartitionedGraph
from .partition.backward_segments import BackwardSegment, owned_copy
from .passes import eliminate_dead_code
from .passes.storage_origins import is_view, storage_origin

aten = torch.ops.aten


def partial_backward(
    partitioned: PartitionedGraph,
    absent: Collection[int],
    dropped: Collection[int] = (),
    *,
    only_present: bool = False,
) -> BackwardSegment | None:
    """Backward where the tangents at the positions ``absent`` are not there.

    Gradients at the positions ``dropped`` are not wanted; another that nothing present leads to is zero.
    None where zeros of symbolic size are needed, and, unless ``only_present``, where zeros for absent ones
    do as well, as they only meet additions and moves.
    """
    source = partitioned.backward.graph
    placeholders = source.find_nodes(op="placeholder")
    tangents = placeholders[len(partitioned.saved) :]
    pruned = _Pruned(source, tangents, [tangents[k] for k in absent])
    (output,) = source.find_nodes(op="output")
    wanted = [(k, node) for k, node in enumerate(output.args[0]) if k not in dropped]
    if not pruned.is_selective and not only_present:
        return None
    try:
        pruned.copy()
        pruned.return_owned([node for _, node in wanted])
    except _NeedsSymbolicZeros:
        return None
    graph = pruned.graph
    eliminate_dead_code(graph)
    inputs = []
    for k, node in enumerate(placeholders):
        copy = pruned.copies.get(node)
        if copy is not None and copy.users:
            inputs.append(k)
        elif copy is not None:
            graph.erase_node(copy)
    graph.lint()
    module = LazyGraphModule(partitioned.backward, graph, "PartialBackward")
    return BackwardSegment(module, tuple(inputs), tuple(k for k, _ in wanted))


def is_linear(functional: FunctionalGraph) -> bool:
    """Whether backward is known to be linear: no part of it was written by the program."""
    return not any(
        is_gradient_rule(node.target)
        or (isinstance(node.target, OpOverload) and node.target.namespace not in _TORCH_NAMESPACES)
        for node in functional.graph_module.graph.nodes
    )


# Other operators may have gradients written in Python.
_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "weft"})


class _NeedsSymbolicZeros(Exception):
    """Zeros for an absent value whose size is symbolic."""


class _Pruned:
    """A copy of a backward graph without the nodes whose values are absent."""

    def __init__(
        self,
        source: torch.fx.Graph,
        tangents: Sequence[torch.fx.Node],
        absent: Sequence[torch.fx.Node],
    ) -> None:
        self.source = source
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.absent = set(absent)
        self.is_selective = False  # whether absent values would have met others than by addition
        self._missing: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # absent, read beside others
        self._zeros: dict[torch.fx.Node, torch.fx.Node] = {}
        self._find_absent(tangents)

    def _find_absent(self, tangents: Sequence[torch.fx.Node]) -> None:
        """Find what is absent without copying anything: most backwards turn out to need no other graph."""
        gradients = set(tangents)  # what depends on tangents
        for node in self.source.nodes:
            if node.op == "output" or node in self.absent:
                continue
            read = [a for a in node.all_input_nodes if a in gradients]
            if read:
                gradients.add(node)
            missing = [a for a in read if a in self.absent]
            if not missing:
                continue
            if len(missing) == len(read):
                self.absent.add(node)
                self.is_selective |= not _keeps_zeros(node)
            else:
                self._missing[node] = missing

    def copy(self) -> None:
        """Fill the graph."""
        for node in self.source.nodes:
            if node.op == "output" or node in self.absent:
                continue
            missing = self._missing.get(node)
            if missing is None:
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
            else:
                self._meet(node, missing)

    def _meet(self, node: torch.fx.Node, missing: Sequence[torch.fx.Node]) -> None:
        """Copy a node of which only the gradients ``missing`` are absent."""
        if node.target is aten.add.Tensor and not node.kwargs and len(missing) == 1:
            (other,) = (a for a in node.all_input_nodes if a not in self.absent)
            alone = self._in_layout(self.copies[other], node.meta["val"])
            if alone is not None:
                self.copies[node] = alone
                return
        for argument in missing:
            if argument not in self._zeros:
                self._zeros[argument] = self._zeros_like(argument.meta["val"])
        known = {**self.copies, **self._zeros}
        self.copies[node] = self.graph.node_copy(node, known.__getitem__)

    def _in_layout(self, node: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node | None:
        """The node's value with the strides of ``like``; None where that is of another kind."""
        value = node.meta["val"]
        if value.dtype != like.dtype or not _same(value.shape, like.shape):
            return None
        if _same(value.stride(), like.stride()):
            return node
        with value.fake_mode, torch.no_grad():
            dense = value.clone(memory_format=torch.contiguous_format)
        if not _same(dense.stride(), like.stride()):
            return None
        copy = self.graph.call_function(
            aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )
        copy.meta["val"] = dense
        return copy

    def return_owned(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Return what stands for the nodes of the source, each in memory of its own."""
        taken: set[torch.fx.Node] = set()
        returned = []
        for node in nodes:
            copy = self.copies.get(node) or self._zeros_like(node.meta["val"])
            origin = storage_origin(copy)
            if origin in taken or origin.op == "placeholder":
                copy = origin = owned_copy(self.graph, copy)
            taken.add(origin)
            returned.append(copy)
        output = self.graph.output(tuple(returned))
        output.meta["val"] = tuple(node.meta["val"] for node in returned)

    def _zeros_like(self, value: Any) -> torch.fx.Node:
        """Zeros in the layout of a value: dense, in the order of its strides."""
        if not isinstance(value, torch.Tensor) or symbols_of(value):
            raise _NeedsSymbolicZeros
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        inverse = [order.index(d) for d in range(value.dim())]
        shape = [value.shape[d] for d in order]
        filled = self.graph.call_function(
            aten.full.default,
            (shape, 0),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
        placed = self.graph.call_function(aten.permute.default, (filled, inverse))
        with value.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
            filled.meta["val"] = torch.zeros(shape, dtype=value.dtype, device=value.device)
            placed.meta["val"] = filled.meta["val"].permute(inverse)
        return placed


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether sizes or strides are equal in every call."""
    return len(left) == len(right) and all(map(known_equal, left, right))


def _keeps_zeros(node: torch.fx.Node) -> bool:
    """Whether the node gives zeros for zeros, whatever else it reads."""
    if node.target in _SCALES:
        factor = node.args[1]
        return isinstance(factor, (int, float)) and math.isfinite(factor) and factor != 0
    return node.target in _MOVES or is_view(node) or node.target is operator.getitem


_SCALES: frozenset[OpOverload] = frozenset({aten.div.Tensor, aten.mul.Tensor})

# Operators that add gradients up, change their type or move them.
_MOVES: frozenset[OpOverload] = frozenset(
    {
        aten._to_copy.default,
        aten.add.Tensor,
        aten.cat.default,
        aten.clone.default,
        aten.constant_pad_nd.default,
        aten.embedding_dense_backward.default,
        aten.index_add.default,
        aten.index_put.default,
        aten.neg.default,
        aten.scatter_add.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
        aten.sub.Tensor,
        aten.sum.default,
        aten.sum.dim_IntList,
    }
)
