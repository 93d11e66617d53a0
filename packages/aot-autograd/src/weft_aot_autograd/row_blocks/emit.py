"""Writes the blocks of a region into its graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from .._torch import OpOverload
from ..recording import QUESTIONS, NodeRecorder
from .region import Region
from .rows import Demand, Rows, Size, Whole, same_sizes, shape_of, trail
from .rules import rule_of

aten = torch.ops.aten
Node = torch.fx.Node

ROW_BLOCK = "row_block"
"""Key of a node's ``meta``: which block it is of.  Who lowers the graph doesn't fuse one with others."""

Bounds = Sequence[tuple[Size, Size]]
"""Where each block begins, and how many rows it has."""


class BlockRecorder(NodeRecorder):
    """Appends what runs under it before a node of the graph."""

    def __init__(self, graph: torch.fx.Graph, before: Node) -> None:
        super().__init__(graph)
        self._before = before
        self.added: list[Node] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace != "prim" and func not in QUESTIONS:
            self.record(func, args, kwargs, result)
        return result

    def append(self, target: Callable[..., Any], args: Any, kwargs: Any, value: Any) -> Node:
        with self.graph.inserting_before(self._before):
            node = super().append(target, args, kwargs, value)
        self.added.append(node)
        return node

    def tensor(self, node: Node) -> torch.Tensor:
        """The fake tensor that ``node`` computes, known as its result."""
        value: torch.Tensor = node.meta["val"]
        self.know(value, node)
        return value


class BlockWriter:
    """Computes nodes of ``region`` in blocks, as fake tensors that ``recorder`` sees.

    ``stand_ins``: what is read in the place of a node outside.
    """

    def __init__(
        self,
        region: Region,
        recorder: BlockRecorder,
        bounds: Bounds,
        stand_ins: Mapping[Node, Node],
    ) -> None:
        self.region, self.recorder, self.bounds = region, recorder, bounds
        self.stand_ins = stand_ins
        self.joined: dict[Node, torch.Tensor] = {}  # results of all blocks, rows in one dimension
        self._flat: dict[tuple[Node, Demand], torch.Tensor] = {}

    def write(
        self, nodes: Sequence[Node], outputs: Sequence[Node], sums: Sequence[Node]
    ) -> dict[Node, torch.Tensor]:
        """Compute ``nodes``, in order, block by block; gives ``outputs`` and ``sums``, which are of them."""
        parts: dict[Node, list[torch.Tensor]] = {n: [] for n in outputs}
        totals: dict[Node, torch.Tensor] = {}
        for number, (start, count) in enumerate(self.bounds):
            block: dict[Node, torch.Tensor] = {}
            begin = len(self.recorder.added)
            for node in nodes:
                self.recorder.provenance = node
                if node in self.region.over_rows:
                    totals[node] = self._added(node, totals.get(node), block, start, count)
                    continue
                rule, demands = rule_of(node), self.region.demands[node]
                assert rule is not None
                given = {n: self._value(n, d, block, start, count) for n, d in demands.items()}
                block[node] = rule.run(node, self.region.dims[node], count, given.__getitem__)
                if node in parts:
                    parts[node].append(block[node])
            for added in self.recorder.added[begin:]:
                added.meta[ROW_BLOCK] = (self.region.root.name, nodes[-1].name, number)
        found: dict[Node, torch.Tensor] = {}
        for node, blocks in parts.items():
            self.recorder.provenance = node
            self.joined[node] = aten.cat.default(blocks)
            found[node] = _shaped(self.joined[node], node)
        for node in sums:
            self.recorder.provenance = node
            found[node] = self._finished(node, totals[node])
        return found

    def _value(
        self,
        node: Node,
        demand: Demand,
        block: Mapping[Node, torch.Tensor],
        start: Size,
        count: Size,
    ) -> torch.Tensor:
        if node in block:
            return block[node]
        whole = self._outside(node, demand)
        if isinstance(demand, Whole):
            return whole
        return _narrow(whole, start, count)

    def _outside(self, node: Node, demand: Demand) -> torch.Tensor:
        """A value that no block computes, its rows in one dimension."""
        if node in self.joined:
            return self.joined[node]
        if (node, demand) not in self._flat:
            tensor = self.recorder.tensor(self.stand_ins.get(node, node))
            if isinstance(demand, Rows) and demand.dims != 1:
                tensor = tensor.reshape((self.region.rows, *trail(tensor.shape, demand.dims)))
            elif isinstance(demand, Whole) and demand.dropped > 1:
                tensor = tensor.reshape((1, *trail(tensor.shape, demand.dropped)))
            self._flat[node, demand] = tensor
        return self._flat[node, demand]

    # -- sums over rows ------------------------------------------------------------------------------------

    def _added(
        self,
        node: Node,
        total: torch.Tensor | None,
        block: Mapping[Node, torch.Tensor],
        start: Size,
        count: Size,
    ) -> torch.Tensor:
        """The sum with the rows of one more block; sums of 16-bit numbers are added up in float32."""
        sum_ = self.region.over_rows[node]
        given = [self._value(n, Rows(sum_.dims), block, start, count) for n in sum_.operands]
        is_short = node.meta["val"].dtype.itemsize == 2
        if sum_.right is None:
            dtype = torch.float32 if is_short else None
            inner = (d - sum_.dims + 1 for d in sum_.along if d >= sum_.dims)
            part = given[0].sum([0, *inner], dtype=dtype)
            return part if total is None else total + part
        left, right = given[0].t(), given[1]
        if is_short:
            part = left.mm(right).to(torch.float32)
            return part if total is None else total + part
        return left.mm(right) if total is None else total.addmm(left, right)

    def _finished(self, node: Node, total: torch.Tensor) -> torch.Tensor:
        sum_ = self.region.over_rows[node]
        if node.target in (aten.mean.default, aten.mean.dim):
            shape = shape_of(sum_.left)
            total = total / math.prod(shape[d] for d in sum_.along)
        return _shaped(total.to(node.meta["val"].dtype), node)


def _shaped(value: torch.Tensor, node: Node) -> torch.Tensor:
    """``value`` in the shape of the node's result."""
    shape = shape_of(node)
    return value if same_sizes(value.shape, shape) else value.view(shape)


def _narrow(value: torch.Tensor, start: Size, count: Size) -> torch.Tensor:
    part: torch.Tensor = aten.slice.Tensor(value, 0, start, start + count)
    return part
