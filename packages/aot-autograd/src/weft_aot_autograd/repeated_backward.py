"""Backward again, for other outputs, after a backward that let go of the graph.

A GAN's step calls ``loss_d.backward()``, then ``loss_g.backward()``: both go through one compiled graph.
In eager the second call finds what it needs: the first has only freed what the nodes on its own way had
saved.  Here all outputs have one node, so it keeps what the ways of the others read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set

import torch

from .joint_graph import PartitionedGraph

aten = torch.ops.aten

_BY_KEPT_NUMBERS = frozenset({aten.mul.Tensor, aten.div.Tensor})
"""What autograd computes with a Python number that it kept as a tensor, and frees: of ``2 * x``, ``x / 3``.

What it keeps as a number is an operand of other overloads: of ``x.mean()``.
"""


class RepeatedBackward:
    """Which tangents may come in a later backward, and the saved values that they need; both by position."""

    def __init__(self, partitioned: PartitionedGraph) -> None:
        self._partitioned = partitioned

    def keeps(self, released: Set[int]) -> Set[int]:
        """The saved values that backward of other tangents reads, if it is possible after ``released``.

        Numbers are not among them.
        """
        others = set(range(len(self._partitioned.tangents))) - released
        if not others:
            return set()
        ways = self._ways
        possible = {k for k in others if not self.meets(released, {k})}
        read = {v for tangents, values in ways.items() if tangents & possible for v in values}
        return read - {self._number}

    def meets(self, released: Set[int], present: Set[int]) -> bool:
        """Whether gradients of ``present`` go where those of ``released`` did, and values are read there."""
        return any(tangents & released and tangents & present for tangents in self._ways)

    @property
    def _number(self) -> int:
        """What stands for all numbers that autograd keeps, behind the positions of saved values."""
        return len(self._partitioned.saved)

    @functools.cached_property
    def _ways(self) -> Mapping[frozenset[int], Set[int]]:
        """Saved values that are read on the way of gradients, by the tangents that these come from."""
        partitioned = self._partitioned
        count = len(partitioned.saved)
        tangents: dict[torch.fx.Node, int] = {}
        values: dict[torch.fx.Node, int] = {}  # of what no tangent leads to
        ways: dict[int, int] = {}
        placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
        for k, node in enumerate(placeholders):
            if k >= count:
                tangents[node] = 1 << (k - count)
            elif isinstance(node.meta["val"], torch.Tensor):
                values[node] = 1 << k
        # Sets are bits of numbers: this is in a first call, and sets of each node start the collector.
        for node in partitioned.backward.graph.nodes:
            leading = read = 0
            for argument in node.all_input_nodes:
                leading |= tangents.get(argument, 0)
                read |= values.get(argument, 0)
            if node.op == "output" or not (leading or read):
                continue
            if not leading:
                values[node] = read
                continue
            tangents[node] = leading
            if node.target in _BY_KEPT_NUMBERS and not all(map(_is_tensor, node.args[:2])):
                read |= 1 << self._number
            ways[leading] = ways.get(leading, 0) | read
        return {frozenset(_positions(t)): _positions(read) for t, read in ways.items() if read}


def _is_tensor(operand: object) -> bool:
    return isinstance(operand, torch.fx.Node) and isinstance(operand.meta["val"], torch.Tensor)


def _positions(bits: int) -> set[int]:
    """Which bits are set."""
    return {k for k in range(bits.bit_length()) if bits >> k & 1}
