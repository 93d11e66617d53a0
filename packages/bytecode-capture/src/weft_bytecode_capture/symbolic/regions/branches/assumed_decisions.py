"""Decisions on data that no region holds: the graph goes on as this call does, and checks it in each.

``if boxes.numel() == 0: return``, ``k = min(n, 100)`` of a count; where capture can't know what this call
does, that it raises no error (``if not valid: raise`` in a ``with`` block).  A call that decides otherwise
runs as the program was written, and from then on the graph ends before the decision.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from ....unsupported import Unsupported
from ...graph.present_values import PresentValues
from ...graph.region_histories import DECIDED_BY_DATA
from ...models.numbers.data_numbers import DataBooleanVariable
from ...models.numbers.representations import number_operand
from ...models.numbers.tensor_number import TensorNumberVariable
from ...models.torch.tensor import TensorVariable
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from .join_points import NaturalLoop, join_point, loops, resolved
from .raising_branches import check_condition, side_without_error

ASSUMABLE = frozenset(
    {
        "decision by a number that depends on data",
        "branch on a tensor's value",
        "decision by a number that the graph computes",
        "number that depends on data",
        DECIDED_BY_DATA,
    }
)
"""Kinds of breaks that an assumption may spare."""

_MAX_ASSUMED = 512  # decisions in a frame: what repeats more often is a loop that data ends


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
    if frame.suspended:
        return None
    found = _present(graph.present_values, condition)
    if found is None:  # of what is drawn: an error is not expected, be there a handler
        found = side_without_error(frame)
    if found is None or _ends_loop(evaluator, found) or not _checked(frame, condition, found):
        return None
    return found


def _checked(frame: Frame, condition: Variable, wanted: bool) -> bool:
    """Let the graph check that ``condition`` is ``wanted`` here; False where it cannot."""
    place = (frame.code, frame.index)
    if not frame.graph.writes_so_far.allow_check(frame, place):
        return False
    if not check_condition(frame, condition, wanted):
        return False
    frame.state.assumed.append(place)
    return True


def require(evaluator: Frame, operator: str, number: Variable, bound: int) -> None:
    """Let the graph check a comparison that may not hold in every call: the others run as written.

    :raises Unsupported: it has not held before, or the graph has written too much to be taken back.
    """
    state, place = evaluator.state, (evaluator.code, evaluator.index)
    condition = evaluator.binary_operation(operator, number, ConstantVariable(bound))
    if condition.is_constant() and condition.as_constant():
        return  # it is checked already
    is_relied_on = (
        state.options.assume_decisions is not False and place not in state.frame.history.refuted
    )
    if not is_relied_on or not _checked(evaluator, condition, True):
        raise Unsupported("list of a length that depends on data")


def _ends_loop(evaluator: Evaluator, found: bool) -> bool:
    """Whether the instruction decides if a loop goes on: that differs with each call.

    But for ``for`` loops that do go on, as where ``break`` is for what is seldom.
    """
    frame = evaluator.frame
    instruction = frame.decoded.instructions[frame.index]
    if "JUMP" not in instruction.name:
        return False
    meeting = join_point(frame.decoded, frame.index)
    left = [k for k in loops(frame.decoded) if frame.index in k.body and meeting not in k.body]
    if not left:
        return False
    jumps = found is ("_TRUE" in instruction.name)
    following = instruction.target if jumps else instruction.index + 1
    return not all(_goes_on(frame, loop, following) for loop in left)


def _goes_on(frame: Frame, loop: NaturalLoop, following: int) -> bool:
    """Whether a loop is a ``for`` loop that the instruction ``following`` is in."""
    head = frame.decoded.instructions[resolved(frame.decoded, loop.head)]
    return head.name == "FOR_ITER" and following in loop.body


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
