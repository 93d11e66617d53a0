"""Which forward operators backward may compute again: a table of rules by class of operator."""

from __future__ import annotations

import enum
from collections.abc import Callable, Set

import torch
import torch.fx
from weft_functionalize import size_hint

from ..recording import COMPUTED_IN_BACKWARD
from .operator_classes import OperatorClass, classify
from .sides import Sides

COMPUTED_IN_FORWARD = "computed_in_forward"
"""Set in the ``meta`` of a node that forward computes for backward, which keeps it."""


class Recompute(enum.Enum):
    """The ruling on a class."""

    ALWAYS = "costs nothing, or one pass over memory where a reader needs the value there"
    FUSED = "where every reader in backward is a kernel it becomes part of"
    SMALL = "as FUSED, and only where the result is about as large as what it reads"
    NEVER = "saved, but for a memory budget"


POLICY: dict[OperatorClass, Recompute] = {
    OperatorClass.NUMBER: Recompute.ALWAYS,
    OperatorClass.VIEW: Recompute.ALWAYS,
    OperatorClass.CREATION: Recompute.ALWAYS,
    OperatorClass.POINTWISE: Recompute.ALWAYS,
    OperatorClass.GATHER: Recompute.FUSED,
    OperatorClass.REDUCTION: Recompute.SMALL,
    OperatorClass.CONTRACTION: Recompute.NEVER,
    OperatorClass.RANDOM: Recompute.NEVER,
    OperatorClass.OTHER: Recompute.NEVER,
}

# What a memory budget may have computed again: its values are the same at each run.
REPEATABLE = frozenset(POLICY) - {OperatorClass.RANDOM, OperatorClass.OTHER}

# Classes whose results need not be in memory, and those that read what is not.
_INSIDE_KERNELS = frozenset(
    {
        OperatorClass.VIEW,
        OperatorClass.CREATION,
        OperatorClass.POINTWISE,
        OperatorClass.GATHER,
    }
)
_FUSED_READERS = _INSIDE_KERNELS | {OperatorClass.REDUCTION}

# A reduction whose result has at least this share of its argument's elements counts as small work.
_SMALL_REDUCTION = 0.25


def may_recompute(node: torch.fx.Node, sides: Sides) -> bool:
    """Whether the table lets backward compute the forward node ``node``, again or in forward's stead."""
    if node.op != "call_function":
        return node.op == "get_attr"
    if node.meta.get(COMPUTED_IN_FORWARD):
        return False
    if node.meta.get(COMPUTED_IN_BACKWARD) or isinstance(node.meta["val"], torch.SymFloat):
        return True  # programs give no such numbers: backward reads data again
    kind = classify(node)
    if node not in sides.needed_by_outputs and kind in REPEATABLE:
        return True
    return _DECIDE[POLICY[kind]](node, sides.backward)


def computed_as_eager(node: torch.fx.Node, sides: Sides) -> bool:
    """Whether eager's backward computes ``node`` too, or nobody can tell: others may write to inputs."""
    if node.op != "call_function" or COMPUTED_IN_BACKWARD in node.meta:
        return may_recompute(node, sides)
    return classify(node) in (OperatorClass.NUMBER, OperatorClass.VIEW, OperatorClass.CREATION)


def is_materialized(node: torch.fx.Node, sides: Sides) -> bool:
    """Whether forward has the value in memory anyway, rather than only inside a kernel."""
    if node not in sides.needed_by_outputs:
        return False
    if classify(node) not in _INSIDE_KERNELS or not _is_fused(node, sides.needed_by_outputs):
        return True
    readers = [user for user in node.users if user in sides.needed_by_outputs]
    return any(sides.depth[user] > sides.depth[node] for user in readers)  # after a call


def _is_fused(node: torch.fx.Node, side: Set[torch.fx.Node]) -> bool:
    """Whether no reader on the given side, through views, needs the value in memory."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop().users:
            if user.op == "output":
                return False
            kind = classify(user)
            if kind is OperatorClass.VIEW and user not in seen:
                seen.add(user)
                pending.append(user)
            elif user in side and kind not in _FUSED_READERS:
                return False
    return True


def _is_small(node: torch.fx.Node, backward: Set[torch.fx.Node]) -> bool:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or not _is_fused(node, backward):
        return False
    read = max((_elements(argument) for argument in node.all_input_nodes), default=0)
    return size_hint(value.numel()) >= _SMALL_REDUCTION * read


def _elements(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return size_hint(value.numel()) if isinstance(value, torch.Tensor) else 0


_DECIDE: dict[Recompute, Callable[[torch.fx.Node, Set[torch.fx.Node]], bool]] = {
    Recompute.ALWAYS: lambda node, backward: True,
    Recompute.FUSED: _is_fused,
    Recompute.SMALL: _is_small,
    Recompute.NEVER: lambda node, backward: False,
}
