"""How one tensor of a frame is eager's view of another: noted, and taken of a third where the frame ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...._torch import HigherOrderOperator, storage_identity
from ...._torch.fakes import is_recorded
from ...graph.node_calls import run_call
from ...graph.purity import writes
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame


@dataclass(frozen=True)
class _Step:
    """A call as it was when it was noted: the graphs of regions replace the nodes that they are given."""

    node: torch.fx.Node
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(frozen=True)
class ViewOf:
    """The calls, in their order, that make a view of what ``base`` gives; none for that itself."""

    base: torch.fx.Node
    steps: tuple[_Step, ...]

    def taken_of(self, evaluator: Frame, tensor: TensorVariable) -> TensorVariable | None:
        """The same view of ``tensor``, in the outermost graph; None if that can't be made there."""
        given = {self.base: tensor.node}
        for step in self.steps:
            node = _repeated(evaluator, step, given)
            if node is None:
                return None
            given[step.node] = node
        made = given[self.steps[-1].node] if self.steps else tensor.node
        fake = made.meta["example_value"]
        if not _shares_storage(made, storage_identity(tensor.fake)):
            return None
        return TensorVariable(made, fake, None)


def view_of(tensor: TensorVariable) -> ViewOf | None:
    """The tensor of which another is a view, as far back as views go; None where a call writes, too."""
    storage, node = storage_identity(tensor.fake), tensor.node
    steps: list[_Step] = []
    while True:
        shared = (n for n in node.all_input_nodes if _shares_storage(n, storage))
        base = next(shared, None)
        if base is None or isinstance(base.target, HigherOrderOperator):
            while steps and not isinstance(node.meta.get("example_value"), torch.Tensor):
                node = steps.pop().node  # one of several results that are new
            return ViewOf(node, tuple(reversed(steps)))
        if writes(node):
            return None
        steps.append(_Step(node, node.args, dict(node.kwargs)))
        node = base


def _shares_storage(node: torch.fx.Node, storage: int) -> bool:
    if "example_value" not in node.meta:
        # It gives several tensors, of which other nodes take one each.
        return any(_shares_storage(given, storage) for given in node.all_input_nodes)
    value = node.meta["example_value"]
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) and storage_identity(v) == storage for v in values)


def _repeated(
    evaluator: Frame, step: _Step, given: Mapping[torch.fx.Node, torch.fx.Node]
) -> torch.fx.Node | None:
    """The call of a step with other nodes, where the outermost graph ends; None if it can't be there."""
    builder = evaluator.graph
    arguments, keywords = torch.fx.map_arg(
        (step.arguments, step.keywords), lambda node: given.get(node, node)
    )
    inner: list[torch.fx.Node] = []
    torch.fx.map_arg((arguments, keywords), inner.append)
    if any(node.graph is not builder.outermost for node in inner):
        return None
    fakes, named = torch.fx.map_arg((arguments, keywords), lambda node: node.meta["example_value"])
    target: Any = step.node.target
    with builder.modes.with_gradients(_recorded(step.node)):
        with builder.fake_mode, builder.shapes.rules():
            try:
                value = run_call(step.node.op, target, fakes, named)
            except RuntimeError:  # a tensor of other strides has no such view
                return None
        node = builder.node(evaluator, step.node.op, target, arguments, keywords)
    node.meta["example_value"] = value
    return node


def _recorded(node: torch.fx.Node) -> bool:
    """Whether gradients were on where views were made: what requires none is made as now."""
    value = node.meta["example_value"]
    every = value if isinstance(value, (tuple, list)) else (value,)
    requiring = [v for v in every if isinstance(v, torch.Tensor) and v.requires_grad]
    if not requiring:
        return torch.is_grad_enabled()
    return is_recorded(requiring[0])
