"""Opcodes that jump and iterate."""

from __future__ import annotations

from ..decode import Instruction, after_loop, handles
from ..evaluator import FrameEvaluator
from ..operations import is_same_object
from ..regions.branch import keep_branch
from ..regions.loop import loop_iterator, roll_loop
from ..regions.raising_sides import rely_on_other_side
from ..regions.unrolled import note_element, note_repeated_test
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.iterators import note_creation


@handles("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.next_index = instruction.target


@handles("JUMP_BACKWARD")
def _jump_backward(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.state.note_repetition()
    note_repeated_test(evaluator, instruction)
    evaluator.next_index = instruction.target


@handles("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def _pop_jump_if_false(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    condition = evaluator.pop()
    if rely_on_other_side(evaluator, instruction, condition, jump_if=False):
        return
    if keep_branch(evaluator, instruction, condition, jump_if=False):
        return
    if not condition.truth(evaluator):
        note_repeated_test(evaluator, instruction)
        evaluator.next_index = instruction.target


@handles("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def _pop_jump_if_true(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    condition = evaluator.pop()
    if rely_on_other_side(evaluator, instruction, condition, jump_if=True):
        return
    if keep_branch(evaluator, instruction, condition, jump_if=True):
        return
    if condition.truth(evaluator):
        note_repeated_test(evaluator, instruction)
        evaluator.next_index = instruction.target


def _is_none(evaluator: FrameEvaluator, variable: Variable) -> bool:
    """``variable is None``, guarded for objects of which nothing else is."""
    return is_same_object(evaluator, variable, ConstantVariable(None))


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def _pop_jump_if_none(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    if _is_none(evaluator, evaluator.pop()):
        evaluator.next_index = instruction.target


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_not_none(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    if not _is_none(evaluator, evaluator.pop()):
        evaluator.next_index = instruction.target


@handles("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    if top.truth(evaluator):
        evaluator.stack.pop()
    else:
        evaluator.next_index = instruction.target


@handles("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    if top.truth(evaluator):
        evaluator.next_index = instruction.target
    else:
        evaluator.stack.pop()


@handles("GET_ITER")
def _get_iter(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    iterated = evaluator.pop()
    kept = loop_iterator(evaluator, instruction, iterated)
    iterator = iterated.iterator(evaluator) if kept is None else kept
    note_creation(evaluator, iterator)
    evaluator.stack.append(iterator)


@handles("FOR_ITER")
def _for_iter(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    iterator = evaluator.stack[-1]
    assert iterator is not None
    if roll_loop(evaluator, instruction, iterator):
        return
    element = iterator.next_or_none(evaluator)
    if element is not None:
        note_element(evaluator, instruction, iterator)
        evaluator.stack.append(element)
        return
    evaluator.iterations.pop(instruction.index, None)
    evaluator.stack.pop()
    evaluator.next_index = after_loop(instruction)
