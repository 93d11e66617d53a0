"""Which backward a training step is expected to run, so that it is the one compiled with forward.

A model that computes its loss gives more beside it: logits, hidden states, the keys and values of a cache.
Their gradients are hardly ever there: with zeros for them backward would add, copy and move what is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, symbols_of

from .given_gradients import GivenGradients
from .joint_graph import PartitionedGraph
from .partial_backward import is_linear, partial_backward
from .partition import BackwardSegment
from .passes.storage_origins import is_view

aten = torch.ops.aten


@dataclass(frozen=True)
class ExpectedBackward:
    """Backward without the tangents at the positions ``missing``."""

    missing: frozenset[int]
    segment: BackwardSegment

    def with_graph(self, graph_module: torch.fx.GraphModule) -> ExpectedBackward:
        """The same with another graph, as an empty one beside a program that is kept."""
        return replace(self, segment=replace(self.segment, graph_module=graph_module))


def expected_backward(
    functional: FunctionalGraph, partitioned: PartitionedGraph
) -> ExpectedBackward | None:
    """Backward from the losses, results without dimensions, if there are other results too.

    None where backward is expected to be the whole, and where sizes are symbols: what a call turns out to
    need beside it would run by operators.  Nor where what the program wrote of backward may see whether the
    others' gradients are zeros or are not there.
    """
    placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
    if any(symbols_of(node.meta["val"]) for node in placeholders):
        return None
    given = GivenGradients(partitioned, range(len(partitioned.gradients)))
    nodes = placeholders[len(partitioned.saved) :]
    tangents = list(zip(partitioned.tangents, nodes, strict=True))
    missing = frozenset(
        position
        for position, (tangent, node) in enumerate(tangents)
        if node.meta["val"].dim() and tangent.output_index not in given.in_some_calls
    )
    if not missing or all(node.meta["val"].dim() for node in nodes):
        return None
    if not is_linear(functional) and not all(_is_only_added(nodes[k]) for k in missing):
        return None
    present = {t.output_index for k, t in enumerate(partitioned.tangents) if k not in missing}
    dropped = given.never(present)
    segment = partial_backward(partitioned, missing, dropped, only_present=True)
    return None if segment is None else ExpectedBackward(missing, segment)


def _is_only_added(gradient: torch.fx.Node) -> bool:
    """Whether nothing is done to a gradient before another is added to it, but moves."""
    pending, absent = [gradient], {gradient}
    while pending:
        for user in pending.pop().users:
            if is_view(user) or user.target in _COPIES:
                absent.add(user)
                pending.append(user)
                continue
            is_sum = user.target is aten.add.Tensor and not user.kwargs
            if not is_sum or absent.issuperset(user.all_input_nodes):
                return False
    return True


_COPIES = frozenset({aten._to_copy.default, aten.clone.default})
