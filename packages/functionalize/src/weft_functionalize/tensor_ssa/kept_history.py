"""Writes that autograd does not see: new data in a tensor that keeps its history."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from .._torch import OpOverload, schema_arguments
from .custom_operators import is_custom
from .emitter import GRADIENTS_DISABLED

aten = torch.ops.aten

_WITHOUT_AUTOGRAD = frozenset(
    {aten.logical_and_, aten.logical_not_, aten.logical_or_, aten.logical_xor_}
)
"""Operators that write to floats too, and that eager's autograd has no kernel of."""


def keep_history(value: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """A tensor with the data of ``value`` whose gradient is that of ``old``: its version before the write."""
    value = value.detach()
    if not (torch.is_grad_enabled() and old.requires_grad):
        return value
    kept: torch.Tensor = _KeptHistory.apply((value,), old)  # type: ignore[no-untyped-call]
    return kept


class _KeptHistory(torch.autograd.Function):
    """The identity for gradients; the value, in a tuple so that it is no input, comes back as it is."""

    @staticmethod
    def forward(ctx: Any, values: tuple[torch.Tensor], old: torch.Tensor) -> torch.Tensor:
        return values[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return None, gradient


def drop_kept_histories(graph: torch.fx.Graph) -> None:
    """Use the values themselves, where gradients do not matter."""
    for node in graph.find_nodes(op="call_function", target=keep_history):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def runs_unseen(node: torch.fx.Node) -> bool:
    """Whether the program ran ``node`` with gradients disabled."""
    return GRADIENTS_DISABLED in node.meta


def writes_unseen(node: torch.fx.Node) -> bool:
    """Whether autograd does not see what ``node``, an operator or a region, writes itself."""
    operator = node.target
    if not isinstance(operator, OpOverload):
        return runs_unseen(node)
    below = is_custom(operator) or operator.overloadpacket in _WITHOUT_AUTOGRAD
    # where autograd knows an operator, eager has raised for an ``out`` or an operand with gradients
    return below or runs_unseen(node) or any(a.is_out for a in schema_arguments(operator))
