"""Evaluation of a part of a frame's instructions, as a region's or on the way to one's end."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Container, Iterator

from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..protocol import Frame
from .decisions import ProgramPoint, refuse
from .state.python_state import ObjectStates

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def run_until(evaluator: Frame, stops: Container[int], inside: Container[int]) -> None:
    """Evaluate until the next instruction is one of ``stops``, or the frame has returned.

    Raises :class:`Unsupported` where control leaves the instructions ``inside``, or at a known break.
    """
    instructions = evaluator.decoded.instructions
    while evaluator.next_index not in stops:
        instruction = instructions[evaluator.next_index]
        evaluator.index = instruction.index
        if _is_at_head(evaluator, instruction.index):
            raise Unsupported("jump out of a region", "to the end of an iteration around it")
        if instruction.index not in inside:
            raise Unsupported("jump out of a region", f"to {instruction!r}")
        if instruction.index in evaluator.breaks:
            raise Unsupported(
                "graph break inside a region", evaluator.breaks[instruction.index].kind
            )
        evaluator.next_index = instruction.index + 1
        try:
            instruction.handler(evaluator, instruction)
        except CapturedException as error:
            evaluator.unwind(error, instruction)
        except Unsupported as error:
            frame = evaluator.state.refused or evaluator
            error.location = error.location or frame.location()
            raise
        if evaluator.finished or evaluator.suspended:
            return


def _is_at_head(evaluator: Frame, index: int) -> bool:
    """Whether an iteration of a loop that is being evaluated would begin there, inside another one."""
    loop = evaluator.rolled_loop
    while loop is not None:
        if loop.head == index:
            return True
        loop = loop.around
    return False


def every_instruction(evaluator: Frame) -> range:
    """The indices of all instructions of the frame's code."""
    return range(len(evaluator.decoded.instructions))


def may_attempt(evaluator: Frame, place: ProgramPoint) -> bool:
    """Whether a region may be tried at ``place``."""
    state = evaluator.state
    return (
        state.options.keep_control_flow
        and not evaluator.graph.transforms.active
        and not is_in_generator(evaluator)
        and state.cache.regions.refused(place) is None
    )


@contextlib.contextmanager
def attempted(
    evaluator: Frame, place: ProgramPoint, what: str, peels: Container[str] = ()
) -> Iterator[None]:
    """Evaluation of the region at ``place``, in ``what`` of the program: refused where it can't be kept.

    ``peels`` are kinds of what may be so in a loop's first iteration only.
    """
    try:
        yield
    except Unsupported as error:
        peel = error.kind in peels
        raise refuse(evaluator, place, str(error), peel=peel, cause=error.location) from error
    except CapturedException as error:
        raise refuse(evaluator, place, f"exception in {what}") from error


def is_in_generator(evaluator: Frame) -> bool:
    """Whether the code at hand may stop in the middle of a region."""
    return bool(evaluator.code.co_flags & _GENERATORS)


def check_unchanged(states: ObjectStates) -> None:
    """Refuse effects on Python objects: a region's graph has none."""
    if states.effects():
        raise Unsupported("effect inside a region")
    for variable, _ in states.changed():
        raise Unsupported("object that a region changes", repr(variable))
