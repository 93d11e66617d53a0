"""Which code can tell that an exception was raised: handlers, but for those that only hand it on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..code_objects.dialects import DIALECT
from .regions.branches.join_points import always_raises
from .variables.base import Variable

if TYPE_CHECKING:
    from .evaluator import FrameEvaluator


_EXIT_BELOW = (
    2 if DIALECT.null_above_exit else 1
)  # in the stack that a ``with`` block's handler has


def handler_sees(frame: FrameEvaluator) -> bool:
    """Whether code of the program's runs when the frame's present instruction raises.

    Leaving a ``with`` block of a context manager of torch's (``no_grad``, ``autocast``) does not count: what
    it switches is switched back whatever the graph does.
    """
    return any(True for _ in _handlers(frame))


def handler_goes_on(frame: FrameEvaluator) -> bool:
    """Whether the program may go on when the frame's present instruction raises: not after ``finally``."""
    return not all(always_raises(frame.decoded, index) for index in _handlers(frame))


def _handlers(frame: FrameEvaluator) -> Iterator[int]:
    """The instructions at which handlers of the program's begin, from the innermost outwards."""
    decoded = frame.decoded
    region = decoded.region(decoded.instructions[frame.index].offset)
    while region is not None:
        index = decoded.index_of_offset[region.target]
        first, second = (decoded.instructions[i].name for i in (index, index + 1))
        # Handlers of the program's begin thus; CPython's own tidy up and raise again.
        is_programs = first == "PUSH_EXC_INFO"
        leaves_block = is_programs and second == "WITH_EXCEPT_START"
        if is_programs and not (
            leaves_block and _is_torchs(frame.stack[region.depth - _EXIT_BELOW])
        ):
            yield index
        region = decoded.region(region.target)


def _is_torchs(leave: Variable | None) -> bool:
    """Whether a bound ``__exit__`` is that of a context manager of torch's."""
    from .models.functions.bound_methods import BoundMethodVariable

    if not isinstance(leave, BoundMethodVariable):
        return False
    return leave.receiver.python_type().__module__.partition(".")[0] == "torch"
