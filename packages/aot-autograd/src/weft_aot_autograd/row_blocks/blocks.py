"""Computes what reads a large matrix row by row in blocks of rows, each of which lives within its block.

The logits of a language model are such a matrix: a matmul makes them, a loss reads them row by row, and their
gradient is read by two matmuls.  So of logits and gradient there is one block at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from weft_functionalize import size_hint

from ..joint_graph import JointGraph
from ..partition.recompute_policy import COMPUTED_IN_FORWARD
from ..passes import eliminate_dead_code
from ..passes.storage_origins import storage_origin
from ..recording import COMPUTED_IN_BACKWARD
from ..tracing import fake_mode_of
from .emit import BlockRecorder, BlockWriter, Bounds
from .fewer_rows import take_rows_first
from .options import RowBlockOptions
from .region import Region, find_region
from .rows import MATMULS, shape_of
from .unit_gradient import degrees

aten = torch.ops.aten
Node = torch.fx.Node


def forward_in_blocks(forward: torch.fx.Graph, options: RowBlockOptions | None = None) -> int:
    """Compute what ``forward`` reads of large matrices in blocks, in place; gives of how many matrices."""
    return _Blocks(forward, (), options or RowBlockOptions()).run()


def joint_in_blocks(joint: JointGraph, options: RowBlockOptions | None = None) -> int:
    """The same for forward and backward; backward of a loss is computed in forward where it may be."""
    graph = joint.graph_module.graph
    tangents = graph.find_nodes(op="placeholder")[len(joint.inputs) :]
    count = _Blocks(graph, tangents, options or RowBlockOptions()).run()
    if count:
        joint.graph_module.recompile()
    return count


@dataclass(frozen=True)
class _Unit:
    """Gradients are computed for a gradient of 1 of what ``tangent`` is of, and multiplied by that.

    ``chain``: nodes outside of the region that depend on it and that the region reads.
    """

    tangent: Node
    chain: tuple[Node, ...]


class _Blocks:
    def __init__(
        self, graph: torch.fx.Graph, tangents: Sequence[Node], options: RowBlockOptions
    ) -> None:
        self.graph, self.tangents, self.options = graph, tangents, options
        self.order: dict[Node, int] = {}
        self.backward: set[Node] = set()

    def run(self) -> int:
        if self.options.min_bytes is None:
            return 0
        if not any(n.target in MATMULS and self._is_large(n) for n in self.graph.nodes):
            return 0
        take_rows_first(self.graph, self._is_large)
        eliminate_dead_code(self.graph)
        roots = [n for n in self.graph.nodes if n.target in MATMULS and self._is_large(n)]
        count = 0
        for root in roots:
            if root.users and root.graph is self.graph:  # not computed in blocks of another one
                count += self._compute(root)
        return count

    def _is_large(self, node: Node) -> bool:
        """Whether a matrix is worth it beside the graph's inputs."""
        options = self.options
        assert options.min_bytes is not None
        nbytes = _computed_nbytes(node)
        if nbytes < max(options.min_bytes, 1) or size_hint(shape_of(node)[0]) < 2 * options.blocks:
            return False
        if isinstance(shape_of(node)[1], torch.SymInt):
            return False
        others = sum(_nbytes(n) for n in self.graph.find_nodes(op="placeholder"))
        return bool(nbytes >= options.min_share * others)

    def _is_large_beside_saved(self, region: Region) -> bool:
        """Whether the region's matrix is, too, beside what else forward leaves for backward."""
        inside = {storage_origin(n) for n in (*region.dims, *region.over_rows)}
        read = {
            storage_origin(n)
            for n in self.order
            if n not in self.backward and any(user in self.backward for user in n.users)
        }
        saved = sum(_nbytes(n) for n in read - inside if n.op == "call_function")
        return _computed_nbytes(region.root) >= self.options.min_saved_share * saved

    def _is_of_layer(self, region: Region) -> bool:
        """Whether another matmul of forward reads what is wide, or only backward makes that."""
        return region.root in self.backward or any(
            node.target in MATMULS and not region.is_wide(node, dims) and node not in self.backward
            for node, dims in region.dims.items()
        )

    def _compute(self, root: Node) -> bool:
        self.order = {node: k for k, node in enumerate(self.graph.nodes)}
        self.backward = _descendants(self.tangents, self.order)
        region = find_region(root, self.order)
        if region is None or not self._is_large_beside_saved(region):
            return False
        if self.tangents and not self.options.layers and self._is_of_layer(region):
            return False
        unit = self._unit(region) if self.options.gradients_in_forward else None
        levels = self._levels(region, unit)
        if unit is not None and max(levels.values()) > 0:
            unit = None
            levels = self._levels(region, unit)
        if any(level > (node in self.backward) for node, level in levels.items()):
            return False  # a row depends on what all rows give
        mode = fake_mode_of(self.graph)
        assert mode is not None
        with torch.no_grad(), mode:
            _Writing(self, region, levels, unit).write()
        eliminate_dead_code(self.graph)
        self.graph.lint()
        return True

    def _levels(self, region: Region, unit: _Unit | None) -> dict[Node, int]:
        """By node of the region, and sum over rows, how often rows have to be gone through before it."""
        levels: dict[Node, int] = {}
        others = dict.fromkeys(self.tangents, 0 if unit else 1)
        for node in self.order:
            if node in region.dims or node in region.over_rows:
                reads = [
                    levels[n] + (n in region.over_rows) if n in levels else others[n]
                    for n in region.operands(node)
                ]
                levels[node] = max(reads, default=0)
            elif node not in others:
                reads = [levels[n] + 1 if n in levels else others[n] for n in node.all_input_nodes]
                others[node] = max(reads, default=0)
        return levels

    # -- gradients in forward --------------------------------------------------------------------------

    def _unit(self, region: Region) -> _Unit | None:
        """How gradients are linear in the gradient of one number; None where they are not.

        Those of float16 would fall below its range: who trains in it scales the loss for that.
        """
        later = [n for n in (*region.dims, *region.over_rows) if n in self.backward]
        if not later or any(n.meta["val"].dtype is torch.float16 for n in later):
            return None
        needed = _ancestors(later, self.backward)
        tangents = [t for t in self.tangents if t in needed]
        if len(tangents) != 1 or shape_of(tangents[0]):
            return None
        found = degrees(tangents[0], sorted(needed - set(tangents), key=self.order.__getitem__))
        results = [n for n in (*region.outputs, *region.over_rows) if n in self.backward]
        if not all(found[n] == 1 for n in results):
            return None
        inside = {*region.dims, *region.over_rows}
        chain = sorted(needed - inside - set(tangents), key=self.order.__getitem__)
        return _Unit(tangents[0], tuple(chain))


class _Writing:
    """The new nodes of one region, and where they come in the graph's order."""

    def __init__(
        self, blocks: _Blocks, region: Region, levels: Mapping[Node, int], unit: _Unit | None
    ) -> None:
        self.region, self.levels, self.unit = region, levels, unit
        self.graph, self.order, self.backward = blocks.graph, blocks.order, blocks.backward
        self.options = blocks.options
        self.recorder = BlockRecorder(self.graph, self.graph.output_node())
        self.keys: dict[Node, tuple[int, int]] = {}

    def write(self) -> None:
        region = self.region
        stand_ins: dict[Node, Node] = {}
        with self.recorder:
            if self.unit is not None:
                stand_ins = self._unit_chain(self.unit)
            bounds = block_bounds(region, self.options)
            self._place(-1)
            writer = BlockWriter(region, self.recorder, bounds, stand_ins)
            replaced: dict[Node, Node] = {}
            for level in range(max(self.levels.values()) + 1):
                replaced |= self._write_level(writer, level)
        for old, new in replaced.items():
            old.replace_all_uses_with(new)
        _sort(self.graph, self.order, self.keys)

    def _write_level(self, writer: BlockWriter, level: int) -> dict[Node, Node]:
        region, levels = self.region, self.levels
        read_later = {
            operand
            for node, own in levels.items()
            for operand in region.operands(node)
            if levels.get(operand, own) < own
        }
        own = [n for n in (*region.outputs, *region.over_rows) if levels[n] == level]
        kept = [n for n in read_later if levels[n] == level and not self._is_wide(n)]
        outputs = [n for n in region.dims if n in own or n in kept]
        sums = [n for n in region.over_rows if n in own]
        needed = self._needed([*outputs, *sums], level)
        if not needed:  # it is wide, and computed again where it is read
            return {}
        results = writer.write(needed, outputs, sums)
        new = {n: self._result(n, results[n], level) for n in (*outputs, *sums)}
        self._place(self._begin(needed))
        return {n: new[n] for n in own}

    def _is_wide(self, node: Node) -> bool:
        return self.region.is_wide(node, self.region.dims[node])

    def _needed(self, nodes: Sequence[Node], level: int) -> list[Node]:
        """What blocks of this level compute: also what is wide and was computed in another one."""
        seen, pending = set(nodes), list(nodes)
        while pending:
            for operand in self.region.operands(pending.pop()):
                if operand not in self.region.dims or operand in seen:
                    continue
                if self.levels[operand] == level or self._is_wide(operand):
                    seen.add(operand)
                    pending.append(operand)
        return sorted(seen, key=self.order.__getitem__)

    def _result(self, node: Node, value: torch.Tensor, level: int) -> Node:
        """What takes the place of ``node``; other nodes are marked by where they are computed."""
        new = self.recorder.node_of(value)
        if level:
            for added in self.recorder.added:
                if added not in self.keys:
                    added.meta[COMPUTED_IN_BACKWARD] = True
        elif self.unit is not None and node in self.backward:
            storage_origin(new).meta[COMPUTED_IN_FORWARD] = True
            tangent = self.recorder.tensor(self.unit.tangent)
            new = self.recorder.node_of(value * tangent.to(value.dtype))
        return new

    # -- order -------------------------------------------------------------------------------------------

    def _begin(self, nodes: Sequence[Node]) -> int:
        """Behind which node of the graph as it was blocks of ``nodes`` come."""
        read = {n for node in nodes for n in self.region.operands(node)}
        return max(self.order[n] for n in read if n not in self.levels)

    def _place(self, after: int) -> None:
        """Have what was added last come ``after`` a node's position."""
        for added in self.recorder.added:
            if added not in self.keys:
                self.keys[added] = (after, len(self.keys))

    def _unit_chain(self, unit: _Unit) -> dict[Node, Node]:
        """Copies of what depends on the gradient, for one of 1."""
        like = unit.tangent.meta["val"]
        one = torch.full((), 1, dtype=like.dtype, device=like.device)
        copies = {unit.tangent: self.recorder.node_of(one)}
        self._place(self.order[unit.tangent])
        for node in unit.chain:
            with self.graph.inserting_before(self.graph.output_node()):
                copies[node] = self.graph.node_copy(node, lambda n: copies.get(n, n))
            self.keys[copies[node]] = (self.order[node], len(self.keys))
        return copies


def block_bounds(region: Region, options: RowBlockOptions) -> Bounds:
    """Blocks of as many rows each, but for a rest that the last one has as well."""
    rows = region.rows
    matrix = region.root.meta["val"]
    least = options.gpu_block_rows
    if matrix.device.type == "cpu":
        least = options.block_rows * (2 if matrix.dtype.itemsize == 2 else 1)
    count = max(options.blocks, min(size_hint(rows) // least, options.max_blocks))
    if isinstance(rows, int):
        count = next((n for n in range(count, 2 * count) if rows % n == 0), count)
    each = rows // count
    starts = [each * k for k in range(count)]
    return [(start, each) for start in starts[:-1]] + [(starts[-1], rows - starts[-1])]


def _computed_nbytes(matrix: Node) -> int:
    """Bytes in float32 at least, in which a loss is computed."""
    value = matrix.meta["val"]
    return size_hint(value.numel()) * max(4, int(value.itemsize))


def _nbytes(node: Node) -> int:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return 0
    return size_hint(value.numel()) * value.itemsize


def _descendants(nodes: Sequence[Node], order: Mapping[Node, int]) -> set[Node]:
    found = set(nodes)
    for node in order:
        if any(argument in found for argument in node.all_input_nodes) and node.op != "output":
            found.add(node)
    return found


def _ancestors(nodes: Sequence[Node], among: Collection[Node]) -> set[Node]:
    """``nodes`` and what of ``among`` they are computed from."""
    found, pending = set(nodes), list(nodes)
    while pending:
        for argument in pending.pop().all_input_nodes:
            if argument in among and argument not in found:
                found.add(argument)
                pending.append(argument)
    return found


def _sort(
    graph: torch.fx.Graph, order: Mapping[Node, int], keys: Mapping[Node, tuple[int, int]]
) -> None:
    """Put each node behind its arguments, else in ``order``, new ones by their ``keys``, sizes first."""
    (output,) = graph.find_nodes(op="output")
    nodes = [n for n in graph.nodes if n is not output and n.op != "placeholder"]
    key = {n: keys[n] if n in keys else (order.get(n, -1), -1) for n in nodes}
    missing = {n: sum(a.op != "placeholder" for a in n.all_input_nodes) for n in nodes}
    ready = [(key[n], k, n) for k, n in enumerate(nodes) if not missing[n]]
    number = {n: k for k, n in enumerate(nodes)}
    heapq.heapify(ready)
    while ready:
        _, _, node = heapq.heappop(ready)
        output.prepend(node)
        for user in node.users:
            if user is output:
                continue
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (key[user], number[user], user))
