"""Hooks of tensors that the graph computes: ``h.register_hook(f)``, ``h.retain_grad()``.

They run in ``backward`` inside the function, each as a call there.  A tensor of which a gradient may be asked
outside breaks the graph before its first hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...unsupported import BreakEarlier, Unsupported
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from ..variables.base import Variable
from .storages import version_of

KIND = "hook of a tensor"


@dataclass(eq=False)
class HookedTensor:
    """One tensor with its hooks, in their order; ``retains``: its gradient is kept after them.

    A write gives the tensor another ``edge`` in autograd's graph: hooks stay at the one that they were
    registered at, and what keeps the gradient goes to the new one.
    """

    tensor: TensorVariable
    position: int  # of the root frame's instruction
    version: int
    edge: GradientEdge
    hooks: dict[object, Variable] = field(default_factory=dict)
    retains: bool = False
    is_replaced: bool = False  # its gradient is another for good, by what a hook gave

    @property
    def is_asked(self) -> bool:
        return self.retains or bool(self.hooks)

    def edges(self) -> Iterator[GradientEdge]:
        """Where a gradient has to come for it to be seen."""
        if self.hooks:
            yield self.edge
        if self.retains:
            yield get_gradient_edge(self.tensor.fake)


class TensorHooks:
    """Those of one evaluation."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], HookedTensor] = {}  # by the fake and its version
        self._unsettled: frozenset[int] = frozenset()  # leaves whose gradients are being computed

    def are_on(self, tensor: TensorVariable) -> bool:
        """Whether a tensor has had hooks, which stay where they were put."""
        return any(hooked.tensor is tensor for hooked in self._tensors.values())

    @contextmanager
    def running(self, leaves: Iterable[TensorVariable]) -> Iterator[None]:
        """While a hook runs: eager has given some of ``leaves`` their gradients, and others not."""
        self._unsettled = frozenset(map(id, leaves))
        try:
            yield
        finally:
            self._unsettled = frozenset()

    def check_read(self, tensor: TensorVariable) -> None:
        """
        :raises Unsupported: a hook asks for a leaf's gradient.
        """
        if id(tensor) in self._unsettled:
            raise Unsupported(KIND, "which asks for the gradient of a leaf")

    def of(self, evaluator: Evaluator, tensor: TensorVariable) -> HookedTensor | None:
        """The hooks of a tensor, to add to; None where a graph cannot have any."""
        graph, fake, root = evaluator.graph, tensor.fake, evaluator.state.root
        if graph.is_in_region or graph.transforms.active or evaluator.state.overrides.modes:
            return None
        if type(tensor) is not TensorVariable or tensor.source is not None or root is None:
            return None
        if tensor.is_regional or tensor.element is not None or tensor.node in graph.marked_leaves:
            return None
        try:
            if not fake.requires_grad or fake.is_leaf:
                return None
        except RuntimeError:  # a view that was made without gradients, of what was written to since
            return None
        version = version_of(fake)
        hooked = HookedTensor(tensor, root.index, version, get_gradient_edge(fake))
        return self._tensors.setdefault((id(fake), version), hooked)

    @property
    def are_any(self) -> bool:
        """Whether some tensor of the graph has hooks."""
        return any(hooked.is_asked for hooked in self._tensors.values())

    def behind(self, results: Iterable[torch.Tensor]) -> list[HookedTensor]:
        """Those with hooks that autograd's graph of ``results`` leads to."""
        asked = [hooked for hooked in self._tensors.values() if hooked.is_asked]
        if not asked:
            return []
        nodes = _nodes_behind(results)
        return [h for h in asked if any(edge.node in nodes for edge in h.edges())]

    def check(self, outputs: Iterable[torch.Tensor], mode: AbstractContextManager[Any]) -> None:
        """
        :param mode: of fake tensors: autograd makes zeros for results that no gradient reaches.
        :raises BreakEarlier: a gradient of one of ``outputs`` would reach a tensor with hooks.
        """
        for output in outputs:
            if not output.requires_grad:
                continue
            for hooked in self.behind([output]):
                with mode:
                    is_let_go = [_is_let_go(output, edge) for edge in hooked.edges()]
                if not all(is_let_go):
                    error = Unsupported(KIND, f"{hooked.tensor!r}, whose gradient is asked outside")
                    raise BreakEarlier(hooked.position, error)


def _nodes_behind(results: Iterable[torch.Tensor]) -> set[Any]:
    pending: list[Any] = [result.grad_fn for result in results if result.grad_fn is not None]
    found = set(pending)
    while pending:
        following = {node for node, _ in pending.pop().next_functions if node is not None}
        pending += following - found
        found |= following
    return found


def _is_let_go(output: torch.Tensor, edge: GradientEdge) -> bool:
    """Whether nothing leads from ``output`` to ``edge``, or a backward has let go of it: eager raises.

    Any other error says nothing: torch has an internal one for an edge that leads into a write to a view.
    """
    seed = torch.ones_like(output)
    try:
        (gradient,) = torch.autograd.grad(output, edge, seed, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return "backward through the graph a second time" in str(error)
    return gradient is None
