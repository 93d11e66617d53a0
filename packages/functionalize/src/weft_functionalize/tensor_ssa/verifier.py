"""Proves that nothing in a functional graph writes."""

from __future__ import annotations

import operator

import torch
import torch.fx

from .._torch import HigherOrderOperator, OpOverload
from ..gradient_rules import is_gradient_rule
from ..symbolic_numbers import SYMBOLIC_TYPES
from .block import blocks_of
from .functional_counterparts import HIDDEN_WRITES, written_arguments
from .inner_gradients import inner_gradients
from .kept_history import keep_history
from .writes import written_variables

# ``and_`` joins the two tests of a loop that a tensor may end early.
_PYTHON_FUNCTIONS = frozenset({operator.getitem, operator.and_, keep_history, inner_gradients})


class VerificationError(Exception):
    """A graph that was to be functional is not; the message shows the nodes around the fault."""


def verify_functional(graph: torch.fx.Graph) -> None:
    """Raise :class:`VerificationError` unless every node of ``graph`` is pure.

    Pure are placeholders, operators none of whose arguments is written, ``getitem``, arithmetic of
    numbers, gradient rules, and control-flow operators whose regions are pure.
    """
    for block in blocks_of(graph):
        for node in block.nodes:
            fault = _fault(node)
            if fault is not None:
                raise VerificationError(f"{fault}\n{_neighbourhood(node)}")


def _fault(node: torch.fx.Node) -> str | None:
    if node.op in ("placeholder", "output", "get_attr"):
        return None
    if node.op != "call_function":
        return f"{node.op} is not an ATen operator"
    if isinstance(node.target, OpOverload):
        names = written_arguments(node.target)
        hidden = node.target in HIDDEN_WRITES
        if names and not (hidden and not written_variables(node, names)):
            return f"{node.target} writes to {', '.join(names)}"
        return None
    if isinstance(node.target, HigherOrderOperator) or node.target in _PYTHON_FUNCTIONS:
        return None
    if is_gradient_rule(node.target):
        return None
    if isinstance(node.meta.get("val"), (int, float, *SYMBOLIC_TYPES)):
        return None  # arithmetic of numbers
    return f"{node.target} is not an ATen operator"


def _neighbourhood(node: torch.fx.Node, radius: int = 3) -> str:
    nodes = list(node.graph.nodes)
    position = nodes.index(node)
    shown = nodes[max(0, position - radius) : position + radius + 1]
    return "\n".join(f"{'->' if n is node else '  '} {n.format_node()}" for n in shown)
