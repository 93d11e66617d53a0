"""How code sees the end of a frame: handlers of an exception, suspended generators that are dropped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from ..code_objects.dialects import DIALECT
from .captured_exception import CapturedException
from .decode import DecodedInstruction
from .models.functions.bound_methods import BoundMethodVariable
from .models.objects.classes import ClassVariable
from .protocol import Frame
from .regions.branches.join_points import always_raises
from .variables.base import Variable

# In the stack that a ``with`` block's handler has.
_EXIT_BELOW = 2 if DIALECT.null_above_exit else 1


def handler_sees(frame: Frame) -> bool:
    """Whether code of the program's runs when the frame's present instruction raises.

    Leaving a ``with`` block of a context manager of torch's (``no_grad``, ``autocast``) or of warnings'
    filters does not count: what it switches is switched back whatever the graph does.
    """
    return any(True for _ in _handlers(frame))


def handler_goes_on(frame: Frame) -> bool:
    """Whether the program may go on when the frame's present instruction raises: not after ``finally``."""
    return not all(always_raises(frame.decoded, index) for index in _handlers(frame))


def warning_blocks(frame: Frame) -> Iterator[Variable]:
    """The blocks of ``warnings.catch_warnings`` that the frame is in, from the innermost on."""
    for _, leave in _every_handler(frame):
        block = leave.receiver if isinstance(leave, BoundMethodVariable) else None
        if block is not None and block.python_type() is warnings.catch_warnings:
            yield block


def _handlers(frame: Frame) -> Iterator[int]:
    """The instructions at which handlers of the program's begin, from the innermost outwards."""
    for index, leave in _every_handler(frame):
        if not _is_harmless(leave):
            yield index


def _every_handler(frame: Frame) -> Iterator[tuple[int, Variable | None]]:
    """Those, and those of ``with`` blocks, with the bound ``__exit__``."""
    decoded = frame.decoded
    entry = decoded.exception_entry(decoded.instructions[frame.index].offset)
    while entry is not None:
        index = decoded.index_of_offset[entry.target]
        first, second = (decoded.instructions[i].name for i in (index, index + 1))
        # Handlers of the program's begin thus; CPython's own tidy up and raise again.
        is_programs = first == "PUSH_EXC_INFO"
        leaves_block = is_programs and second == "WITH_EXCEPT_START"
        if is_programs:
            yield index, frame.stack[entry.depth - _EXIT_BELOW] if leaves_block else None
        entry = decoded.exception_entry(entry.target)


def _is_harmless(leave: Variable | None) -> bool:
    """Whether a bound ``__exit__`` is that of a context manager of torch's, or of warnings' filters."""
    if not isinstance(leave, BoundMethodVariable):
        return False
    kind = leave.receiver.python_type()
    return kind is warnings.catch_warnings or kind.__module__.partition(".")[0] == "torch"


# What a suspended generator does when nothing refers to it any more.


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


def exit_runs_code(frame: Frame) -> bool:
    """Whether GeneratorExit, raised where ``frame`` waits, runs code of the generator.

    ``finally`` and ``with`` do; an ``except`` that names other exceptions only hands it on.
    """
    instruction = frame.decoded.instructions[frame.index]
    while True:
        entry = frame.decoded.exception_entry(instruction.offset)
        if entry is None:
            return False
        last = _passes_through(frame, frame.decoded.index_of_offset[entry.target])
        if last is None:
            return True
        instruction = last


def _passes_through(frame: Frame, index: int) -> DecodedInstruction | None:
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
