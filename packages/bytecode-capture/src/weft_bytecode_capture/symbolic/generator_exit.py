"""What a suspended generator does when nothing refers to it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .captured_exception import CapturedException
from .models.objects.classes import ClassVariable
from .variables.base import Variable

if TYPE_CHECKING:
    from .decode import Instruction
    from .evaluator import FrameEvaluator

_STOP_ITERATION_ERROR = 3  # the intrinsic of 3.12 that turns StopIteration into RuntimeError
_NO_EFFECT = (
    "BUILD_TUPLE",
    "COPY",
    "EXTENDED_ARG",
    "JUMP_FORWARD",
    "NOP",
    "POP_EXCEPT",
    "PUSH_EXC_INFO",
)


def exit_runs_code(frame: FrameEvaluator) -> bool:
    """Whether GeneratorExit, raised where ``frame`` waits, runs code of the generator.

    ``finally`` and ``with`` do; an ``except`` that names other exceptions only hands it on.
    """
    instruction = frame.decoded.instructions[frame.index]
    while True:
        region = frame.decoded.region(instruction.offset)
        if region is None:
            return False
        last = _passes_through(frame, frame.decoded.index_of_offset[region.target])
        if last is None:
            return True
        instruction = last


def _passes_through(frame: FrameEvaluator, index: int) -> Instruction | None:
    """The instruction that raises GeneratorExit again in the handler at ``index``; None if it does more."""
    named: list[Variable] = []  # the classes that the next check compares with
    while True:
        instruction = frame.decoded.instructions[index]
        index += 1
        match instruction.name:
            case "RERAISE" | "CLEANUP_THROW":
                return instruction
            case "LOAD_GLOBAL":
                try:
                    named.append(frame.globals.load(frame, instruction.operand))
                except CapturedException:
                    return None
            case "CHECK_EXC_MATCH":
                if any(map(_catches_exit, named)):
                    return None
                named.clear()
            case "POP_JUMP_FORWARD_IF_FALSE" | "POP_JUMP_IF_FALSE":
                index = instruction.target
            case "CALL_INTRINSIC_1" if instruction.argument == _STOP_ITERATION_ERROR:
                pass
            case name if name not in _NO_EFFECT:
                return None
        if instruction.name == "JUMP_FORWARD":
            index = instruction.target


def _catches_exit(kind: Variable) -> bool:
    return not isinstance(kind, ClassVariable) or issubclass(GeneratorExit, kind.value)
