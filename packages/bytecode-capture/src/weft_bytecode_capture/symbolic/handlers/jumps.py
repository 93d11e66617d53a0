"""Opcodes that jump and iterate."""

from __future__ import annotations

from ..decode import DecodedInstruction, after_loop, handles
from ..evaluator import FrameEvaluator
from ..models.iterators.joint_iterators import note_creation
from ..models.numbers.data_numbers import decision
from ..regions.branches.branch import keep_branch
from ..regions.branches.raising_branches import rely_on_other_branch
from ..regions.loops.candidates import keep_candidate
from ..regions.loops.loop import loop_iterator, require_kept, roll_loop
from ..regions.loops.unrolled import note_element, note_end, note_repeated_test
from ..regions.loops.whole_loops import keep_whole
from ..variables.constant import ConstantVariable
from ..variables.operations import is_same_object

_SENSES = ("TRUE", "FALSE")


@handles("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.next_index = instruction.target


@handles("JUMP_BACKWARD")
def _jump_backward(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.state.note_repetition()
    note_repeated_test(evaluator, instruction)
    evaluator.next_index = instruction.target


@handles(
    *(f"POP_JUMP_{way}IF_{sense}" for way in ("", "FORWARD_", "BACKWARD_") for sense in _SENSES)
)
def _pop_jump(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    condition, jump_if = decision(evaluator.pop()), instruction.name.endswith("_TRUE")
    if rely_on_other_branch(evaluator, instruction, condition, jump_if=jump_if):
        return
    require_kept(evaluator, instruction, condition)
    if keep_branch(evaluator, instruction, condition, jump_if=jump_if):
        return
    outcome = condition.truth(evaluator)
    if keep_whole(evaluator, instruction, outcome):
        return
    if outcome is jump_if:
        note_repeated_test(evaluator, instruction)
        evaluator.next_index = instruction.target


@handles(
    *(
        f"POP_JUMP_{way}IF_{sense}NONE"
        for way in ("", "FORWARD_", "BACKWARD_")
        for sense in ("", "NOT_")
    )
)
def _pop_jump_by_none(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """``x is None`` is guarded for objects of which nothing else is."""
    is_none = is_same_object(evaluator, evaluator.pop(), ConstantVariable(None))
    if is_none is not instruction.name.endswith("_NOT_NONE"):
        evaluator.next_index = instruction.target


@handles(*(f"JUMP_IF_{sense}_OR_POP" for sense in _SENSES))
def _jump_or_pop(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    if top.truth(evaluator) is ("_TRUE_" in instruction.name):
        evaluator.next_index = instruction.target
    else:
        evaluator.stack.pop()


@handles("GET_ITER")
def _get_iter(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    iterated = evaluator.pop()
    kept = loop_iterator(evaluator, instruction, iterated)
    iterator = iterated.iterator(evaluator) if kept is None else kept
    note_creation(evaluator, iterator)
    evaluator.stack.append(iterator)


@handles("FOR_ITER")
def _for_iter(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    iterator = evaluator.stack[-1]
    assert iterator is not None
    if keep_candidate(evaluator, instruction, iterator):
        return
    if roll_loop(evaluator, instruction, iterator):
        return
    element = iterator.next_or_none(evaluator)
    if element is not None:
        note_element(evaluator, instruction, iterator)
        evaluator.stack.append(element)
        return
    note_end(evaluator, instruction)
    evaluator.stack.pop()
    evaluator.next_index = after_loop(instruction)
