"""Tensors made in a graph of which the program says that they require gradients: ``h.requires_grad = True``.

A graph gives no gradient to what it makes.  Where the tensor is used up in the graph nobody can ask for one,
and the mark shows in nothing else as long as all that is computed from it, and leaves the graph, requires
gradients anyway: of the parameters that it was computed with.  Anything else breaks before the mark.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.fx

from ..._torch import set_grad_enabled
from ...gradient_rule import GradientRule
from ...unsupported import BreakEarlier, Unsupported
from ..protocol import Evaluator
from .purity import possibly_written, writes
from .storages import leaves

KIND = "change of requires_grad"


class MarkedLeaves:
    """The marks of one evaluation."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._mode = torch.is_grad_enabled()  # at the graph's beginning
        self._marks: dict[torch.fx.Node, int] = {}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def __contains__(self, node: torch.fx.Node) -> bool:
        return node in self._marks

    def mark(self, evaluator: Evaluator, node: torch.fx.Node, fake: torch.Tensor) -> bool:
        """Note that the tensor requires gradients from now on; False where a graph cannot have it so."""
        differentiable = fake.dtype.is_floating_point or fake.dtype.is_complex
        graph = evaluator.graph
        if graph.is_in_region or graph.transforms.active or not differentiable:
            return False
        if fake.requires_grad or node.graph is not self._graph or node.op == "placeholder":
            return False
        root = evaluator.state.root
        assert root is not None
        self._marks.setdefault(node, root.index)
        graph.views_of_leaves.note(evaluator, fake)
        return True

    def require_unmarked(self, nodes: Iterable[torch.fx.Node]) -> None:
        """
        :raises BreakEarlier: one of ``nodes`` requires gradients by a mark alone.
        """
        if self._marks:
            followed = self._followed()
            for node in nodes:
                if node in followed:
                    self._refuse(followed[node], "it is asked for, or leaves the graph")

    def require_none_among(self, nodes: Iterable[torch.fx.Node]) -> None:
        """
        :raises BreakEarlier: one of ``nodes`` is marked.
        """
        for node in nodes:
            if node in self._marks:
                self._refuse(node, "its gradient is kept")

    def _followed(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """The nodes whose results require gradients by a mark alone, and the marked node of each."""
        found: dict[torch.fx.Node, torch.fx.Node] = {}
        mode = self._mode
        for node in self._graph.nodes:
            if node.target is set_grad_enabled:
                mode = node.args[0]
            if node in self._marks:
                found[node] = node
            marked = next((found[given] for given in node.all_input_nodes if given in found), None)
            if marked is None or node.op == "output":
                continue
            if isinstance(node.target, GradientRule):
                self._refuse(marked, "an autograd function takes it")
            if writes(node):
                self._check_write(node, found, marked)
            passes = mode or node.target is operator.getitem
            if passes and node.target not in _DETACHED and _is_left_without(node):
                found.setdefault(node, marked)
        return found

    def _check_write(
        self,
        node: torch.fx.Node,
        found: dict[torch.fx.Node, torch.fx.Node],
        marked: torch.fx.Node,
    ) -> None:
        for written in possibly_written(node):
            value = written.meta.get("example_value")
            if written in found or not getattr(value, "requires_grad", True):
                self._refuse(marked, "a write beside it")

    def _refuse(self, node: torch.fx.Node, why: str) -> NoReturn:
        raise BreakEarlier(self._marks[node], Unsupported(KIND, f"{node.name}: {why}"))


_DETACHED = frozenset({"detach", torch.detach, torch.Tensor.detach})


def _is_left_without(node: torch.fx.Node) -> bool:
    """Whether a result could require gradients and does not."""
    return any(map(_could, leaves(node.meta.get("example_value"))))


def _could(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return (value.dtype.is_floating_point or value.dtype.is_complex) and not value.requires_grad
