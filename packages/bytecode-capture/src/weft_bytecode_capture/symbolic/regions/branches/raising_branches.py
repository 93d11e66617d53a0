"""Conditionals of which one branch only raises: ``assert (x > 0).all()``, ``if bad: raise ValueError``.

The graph goes on with the other branch and checks, when it runs, that this is the one taken.  A call in which
it is not runs as the program was written, so that the error is eager's own.
"""

from __future__ import annotations

import operator

import torch

from ...decode import DecodedCode, DecodedInstruction
from ...frame_ends import handler_goes_on
from ...graph.data_dependence import can_read, read_number, require_compared
from ...models.numbers.data_numbers import DataBooleanVariable, known_truth
from ...models.numbers.tensor_number import TensorNumberVariable, as_predicate, tested_tensor
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..evaluation import may_attempt
from .join_points import always_raises

_OPPOSITES = {
    operator.eq: operator.ne,
    operator.ne: operator.eq,
    operator.lt: operator.ge,
    operator.ge: operator.lt,
    operator.le: operator.gt,
    operator.gt: operator.le,
}


def rely_on_other_branch(
    evaluator: Frame, instruction: DecodedInstruction, condition: Variable, *, jump_if: bool
) -> bool:
    """At a conditional jump on data: go on with the branch that does not raise, and let the graph check it.

    False where both branches may go on, where the program would go on after what is raised, or the condition
    is not the graph's.  The condition is popped already.
    """
    place = (evaluator.code, instruction.index)
    if not _is_of_data(condition) or evaluator.suspended or not may_attempt(evaluator, place):
        return False
    start = _side_that_goes_on(evaluator.decoded, instruction)
    graph = evaluator.graph
    if start is None or graph.is_in_region or any(map(handler_goes_on, evaluator.frames())):
        return False
    graph.writes_so_far.require_little(evaluator, place)
    if not check_condition(evaluator, condition, jump_if is (start == instruction.target)):
        return False
    evaluator.next_index = start
    return True


def side_without_error(frame: Frame) -> bool | None:
    """What the condition of the jump at hand is where the frame goes on; None if no side raises."""
    instruction = frame.decoded.instructions[frame.index]
    if not instruction.name.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    start = _side_that_goes_on(frame.decoded, instruction)
    if start is None:
        return None
    return instruction.name.endswith("IF_TRUE") is (start == instruction.target)


def _is_of_data(condition: Variable) -> bool:
    if isinstance(condition, TensorVariable):
        return condition.fake.dim() == 0 and known_truth(condition.node) is None
    return isinstance(condition, (DataBooleanVariable, TensorNumberVariable))


def _side_that_goes_on(decoded: DecodedCode, instruction: DecodedInstruction) -> int | None:
    """Where the branch begins that may go on, if the other raises whatever happens."""
    branches = (instruction.target, instruction.index + 1)
    raising = [always_raises(decoded, start) for start in branches]
    return None if raising[0] is raising[1] else branches[raising.index(False)]


def check_condition(evaluator: Frame, condition: Variable, wanted: bool) -> bool:
    """Let the graph check that ``condition`` is ``wanted``; False where it cannot."""
    graph = evaluator.graph
    if isinstance(condition, DataBooleanVariable) and condition.value is not None:
        function = condition.function if wanted else _OPPOSITES[condition.function]
        require_compared(graph, function, *condition.operands)
        return True
    tested = tested_tensor(evaluator, condition)
    if not isinstance(tested, TensorVariable):
        return False
    predicate = as_predicate(evaluator, tested)
    dtype = ConstantVariable(torch.int64)
    number = graph.call_method(evaluator, "to", predicate, (dtype,), {})
    if not isinstance(number, TensorVariable) or not can_read(evaluator, number):
        return False
    read = read_number(evaluator, number)
    # No equation: the number would be taken for a constant, of which there is nothing to check.
    compare, bound = (operator.ge, 1) if wanted else (operator.le, 0)
    require_compared(graph, compare, read, ConstantVariable(bound))
    return True
