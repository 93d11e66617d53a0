"""Decisions on data that no region holds: the graph goes on as this call does, and checks it in each.

``if boxes.numel() == 0: return``, ``k = min(n, 100)`` of a count.  A call that decides otherwise runs as the
program was written, and from then on the graph ends before the decision.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from ...graph.present_values import PresentValues
from ...models.numbers.data_numbers import DataBooleanVariable
from ...models.numbers.representations import number_operand
from ...models.numbers.tensor_number import TensorNumberVariable
from ...models.torch.tensor import TensorVariable
from ...protocol import Evaluator
from ...variables.base import Variable
from .join_points import join_point, leaves_loop
from .raising_branches import check_condition

ASSUMABLE = frozenset(
    {
        "decision by a number that depends on data",
        "branch on a tensor's value",
        "decision by a number that the graph computes",
        "number that depends on data",
    }
)
"""Kinds of breaks that an assumption may spare."""

_MAX_ASSUMED = 64  # decisions in a frame: what repeats more often is a loop that data ends


class AssumptionsRefused(Exception):
    """The graph writes what a check that fails could not take back: the frame is evaluated without any."""


def assumed(evaluator: Evaluator, condition: Variable) -> bool | None:
    """What ``condition`` is in this call, which the graph checks; None where that is not to be relied on."""
    frame, state, graph = evaluator.frame, evaluator.state, evaluator.graph
    if not state.options.assume_decisions or graph.is_in_region or graph.transforms.active:
        return None
    place = (frame.code, frame.index)
    if place in state.frame.history.refuted or len(state.assumed) >= _MAX_ASSUMED:
        return None
    if frame.suspended or _ends_loop(evaluator):
        return None
    found = _present(graph.present_values, condition)
    if found is None or not check_condition(frame, condition, found):
        return None
    state.assumed.append(place)
    return found


def _ends_loop(evaluator: Evaluator) -> bool:
    """Whether the instruction decides if a loop goes on: that differs with each call."""
    frame = evaluator.frame
    if "JUMP" not in frame.decoded.instructions[frame.index].name:
        return False
    meeting = join_point(frame.decoded, frame.index)
    return leaves_loop(frame.decoded, frame.index, meeting)


def _present(values: PresentValues, condition: Variable) -> bool | None:
    if isinstance(condition, DataBooleanVariable):
        operands = [_value(values, number_operand(operand)) for operand in condition.operands]
        return None if None in operands else bool(condition.function(*operands))
    if isinstance(condition, TensorNumberVariable):
        condition = condition.tensor
    found = _value(values, condition.node) if isinstance(condition, TensorVariable) else None
    return None if found is None else bool(found)


def _value(values: PresentValues, operand: Any) -> Any:
    return values.value(operand) if isinstance(operand, torch.fx.Node) else operand
