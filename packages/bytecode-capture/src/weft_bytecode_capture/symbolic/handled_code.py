"""Which code can tell that an exception was raised: handlers, but for those that only hand it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .variables.base import Variable

if TYPE_CHECKING:
    from .evaluator import Evaluator


def handler_sees(frame: Evaluator) -> bool:
    """Whether code of the program's runs when the frame's present instruction raises.

    Leaving a ``with`` block of a context manager of torch's (``no_grad``, ``autocast``) does not count: what
    it switches is switched back whatever the graph does.
    """
    decoded = frame.decoded
    region = decoded.region(decoded.instructions[frame.index].offset)
    while region is not None:
        index = decoded.index_of_offset[region.target]
        first, second = (decoded.instructions[i].name for i in (index, index + 1))
        # Handlers of the program's begin thus; CPython's own tidy up and raise again.
        is_programs = first == "PUSH_EXC_INFO"
        leaves_block = is_programs and second == "WITH_EXCEPT_START"
        if is_programs and not (leaves_block and _is_torchs(frame.stack[region.depth - 1])):
            return True
        region = decoded.region(region.target)
    return False


def _is_torchs(leave: Variable | None) -> bool:
    """Whether a bound ``__exit__`` is that of a context manager of torch's."""
    from .variables.bound_methods import BoundMethodVariable

    if not isinstance(leave, BoundMethodVariable):
        return False
    return leave.receiver.python_type().__module__.partition(".")[0] == "torch"
