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


class RepeatedBackward:
    """Which tangents may come in a later backward, and the saved values that they need; both by position."""

    def __init__(self, partitioned: PartitionedGraph) -> None:
        self._partitioned = partitioned

    def keeps(self, released: Set[int]) -> Set[int]:
        """The saved values that backward of other tangents reads, if it is possible after ``released``.

        Numbers are not among them.
        """
        ways = self._ways
        others = set(range(len(self._partitioned.tangents))) - released
        possible = {k for k in others if not self.meets(released, {k})}
        return {value for tangents, read in ways.items() if tangents & possible for value in read}

    def meets(self, released: Set[int], present: Set[int]) -> bool:
        """Whether gradients of ``present`` go where those of ``released`` did, and values are read there."""
        return any(tangents & released and tangents & present for tangents in self._ways)

    @functools.cached_property
    def _ways(self) -> Mapping[frozenset[int], Set[int]]:
        """Saved values that are read on the way of gradients, by the tangents that these come from."""
        partitioned = self._partitioned
        count = len(partitioned.saved)
        tangents: dict[torch.fx.Node, frozenset[int]] = {}
        values: dict[torch.fx.Node, frozenset[int]] = {}  # of what no tangent leads to
        ways: dict[frozenset[int], set[int]] = {}
        nothing = frozenset[int]()
        placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
        for k, node in enumerate(placeholders):
            if k >= count:
                tangents[node] = frozenset({k - count})
            elif isinstance(node.meta["val"], torch.Tensor):
                values[node] = frozenset({k})
        for node in partitioned.backward.graph.nodes:
            given = node.all_input_nodes
            leading = nothing.union(*(tangents.get(a, nothing) for a in given))
            read = nothing.union(*(values.get(a, nothing) for a in given))
            if node.op == "output" or not (leading or read):
                continue
            if not leading:
                values[node] = read
                continue
            tangents[node] = leading
            if read:
                ways.setdefault(leading, set()).update(read)
        return ways
