"""What must stay true of results that a program's own rule gives gradients, for the graph to be right.

Later stages take such a result for a tensor of its own.  One that shares memory with another tensor of the
graph must therefore not be written to, nor leave the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..._torch import storage_identity
from ...unsupported import BreakEarlier, Unsupported
from ..protocol import Evaluator

if TYPE_CHECKING:
    from ..models.torch.tensor import TensorVariable
    from .builder import GraphBuilder


@dataclass(frozen=True)
class _SharedResult:
    """A result that shares memory: its node, and its version counter when it came into being."""

    item: torch.fx.Node
    version: int
    position: int  # of the root frame's instruction


class GradientRules:
    """The results of one graph's gradient rules."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._shared: list[_SharedResult] = []

    def storages_so_far(self) -> frozenset[int]:
        """The storages of all tensors of the graph."""
        return frozenset(_storage(node) for node in self._graph.outermost.nodes) - {0}

    def note(
        self, evaluator: Evaluator, results: Sequence[TensorVariable], before: frozenset[int]
    ) -> None:
        """Results of a rule are in the graph; ``before``: the storages there were before its forward.

        :raises Unsupported: two of them share memory.
        """
        own = [_storage(variable.node) for variable in results]
        if len(set(own)) != len(own):
            raise Unsupported(_KIND, "results that share memory")
        root = evaluator.state.root
        for variable, storage in zip(results, own, strict=True):
            if storage in before and root is not None:
                row = _SharedResult(variable.node, _version(variable.node), root.index)
                self._shared.append(row)

    def check(self, outputs: Iterable[Any]) -> None:
        """
        :raises BreakEarlier: a result that shares memory was written to, or is among ``outputs``.
        """
        returned = [output.node for output in outputs if isinstance(output.node, torch.fx.Node)]
        for row in self._shared:
            if _version(row.item) != row.version:
                error = Unsupported(_KIND, "a view among its results is written to")
                raise BreakEarlier(row.position, error)
            if any(_comes_from(node, row.item) for node in returned):
                error = Unsupported(_KIND, "a view among its results leaves the graph")
                raise BreakEarlier(row.position, error)


_KIND = "autograd function that needs gradients"


def _storage(node: torch.fx.Node) -> int:
    """What the values of nodes that share memory have in common; 0 for what is no tensor."""
    value = node.meta.get("example_value")
    return storage_identity(value) if isinstance(value, torch.Tensor) else 0


def _version(node: torch.fx.Node) -> int:
    return int(node.meta["example_value"]._version)


def _comes_from(node: torch.fx.Node, origin: torch.fx.Node) -> bool:
    """Whether a node's value is that of ``origin`` or a view of it."""
    pending, storage = [node], _storage(origin)
    seen = set(pending)
    while pending:
        current = pending.pop()
        if current is origin:
            return True
        fresh = [n for n in current.all_input_nodes if n not in seen and _storage(n) == storage]
        seen.update(fresh)
        pending += fresh
    return False
