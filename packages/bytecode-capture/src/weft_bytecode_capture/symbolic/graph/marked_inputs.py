"""Arguments of which a program says that they require gradients: ``positions.requires_grad_()``.

One is a leaf as soon as the graph is called; what was computed from it before was computed without gradients.
A graph that raises leaves it as it was, since the frame runs again as it was written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from ..._torch import storage_identity
from ...frame.emitter import Emitter
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from .histories import guard_without_hooks
from .recovery import LeavesChanges
from .storages import leaves, node_values, storages, version_of


class MarkedInputs:
    """The marks of one evaluation."""

    def __init__(self) -> None:
        self._nodes: dict[torch.fx.Node, torch.Tensor] = {}

    def mark(self, evaluator: Evaluator, tensor: TensorVariable) -> bool:
        """Let an argument require gradients from now on; False where a graph cannot have it so."""
        graph, fake = evaluator.graph, tensor.fake
        if type(tensor) is not TensorVariable or not isinstance(tensor.node, torch.fx.Node):
            return False
        if graph.is_in_region or graph.transforms.active or tensor.is_regional:
            return False
        if tensor.source is None or tensor.node.op != "placeholder":
            return False
        if not _are_apart(tensor.node.users, fake):
            return False
        if not (fake.dtype.is_floating_point or fake.dtype.is_complex) or fake.is_inference():
            return False
        given = evaluator.builder.value_of(tensor)
        if fake.requires_grad or given.requires_grad or torch.is_inference_mode_enabled():
            return False
        guard_without_hooks(evaluator, tensor.source, given)
        _detach(evaluator, tensor)
        fake.requires_grad_()
        self._nodes[tensor.node] = fake
        graph.views_of_leaves.note_input(evaluator, given)
        evaluator.side_effects.record(functools.partial(_emit, tensor))
        return True

    def without(
        self, given: Iterable[tuple[Any, torch.Tensor, torch.Tensor]]
    ) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
        """The tensors from outside but those that are marked."""
        marked = set(map(id, self._nodes.values()))
        return [row for row in given if id(row[2]) not in marked]

    def positions(self, graph: torch.fx.Graph) -> tuple[int, ...]:
        """Which of the graph's inputs are marked."""
        inputs = graph.find_nodes(op="placeholder")
        return tuple(place for place, node in enumerate(inputs) if node in self._nodes)


def _are_apart(users: Iterable[torch.fx.Node], fake: torch.Tensor) -> bool:
    """Whether what was computed from a tensor shares no memory with it, and nothing was written to it."""
    values = storages(leaves(node_values(users)))
    return storage_identity(fake) not in values and version_of(fake) == 0


def _detach(evaluator: Evaluator, tensor: TensorVariable) -> None:
    """Let what was computed so far have been computed from the tensor without its gradients."""
    node, users = tensor.node, list(tensor.node.users)
    if not users:
        return
    graph = evaluator.graph.outermost
    first = next(n for n in graph.nodes if n.op not in ("placeholder", "get_attr"))
    with graph.inserting_before(first):
        detached = graph.call_method("detach", (node,))
    detached.meta["example_value"] = tensor.fake.detach()
    for user in users:
        user.replace_input_with(node, detached)


def _require_gradients(tensor: torch.Tensor) -> None:
    tensor.requires_grad_()


def _emit(tensor: TensorVariable, emitter: Emitter) -> None:
    emitter.run_call(_require_gradients, tensor)


def marking_inputs(positions: tuple[int, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which runs the graph, on inputs that require gradients at ``positions``."""
    if not positions:
        return function

    def run(*arguments: Any) -> Any:
        marked = [arguments[place] for place in positions]
        for tensor in marked:
            tensor.requires_grad_()
        try:
            return function(*arguments)
        except LeavesChanges:
            raise
        except BaseException:  # after an interrupt too
            for tensor in marked:
                tensor.requires_grad_(False)
            raise

    return run
