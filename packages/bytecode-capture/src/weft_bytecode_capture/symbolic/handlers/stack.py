"""Opcodes that move values on the stack or do nothing."""

from __future__ import annotations

from ..decode import Instruction, handles
from ..evaluator import FrameEvaluator
from ..models.objects.finalizers import check_dropped


@handles("NOP", "RESUME", "EXTENDED_ARG", "CACHE", "PRECALL")
def _nothing(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    """Nothing that the evaluator needs to know."""


@handles("POP_TOP")
def _pop_top(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    check_dropped(evaluator, evaluator.stack.pop())


@handles("PUSH_NULL")
def _push_null(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.stack.append(None)


@handles("COPY")
def _copy(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.stack.append(evaluator.stack[-instruction.argument])


@handles("SWAP")
def _swap(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    stack, depth = evaluator.stack, instruction.argument
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@handles("END_FOR")
def _end_for(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    del evaluator.stack[-2:]


@handles("END_SEND")
def _end_send(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    del evaluator.stack[-2]
