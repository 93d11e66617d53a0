"""Frames whose graph has raised: they run as they were written, so that errors are eager's own.

Where the program then raises nothing, the graph's error is a fault of what compiled it, and is told as one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from .. import _frame_hook
from ..symbolic.frame_result import FrameInput
from ..symbolic.graph.recovery import LeavesChanges, RunsAsWritten, raised_by_hook
from ..symbolic.regions.decisions import ProgramPoint

_CALLS_PER_EXCEPTION = 16
"""Calls in which assumptions hold that are worth one in which the frame runs as it was written."""

_NO_MEMORY = ("can't allocate memory", "out of memory")


class GraphRaisedError(Exception):
    """A graph raised where the program, which ran as it was written after that, raises nothing."""


def run_as_written(
    on_error: Callable[[Exception, str], None] | None,
    expected: tuple[type[Exception], ...],
    location: str,
) -> Callable[..., Any]:
    """What a frame calls with its graph's error, its function and arguments, and what it has drawn.

    ``on_error(error, location)`` is told of errors that the program does not raise, where it is not None; but
    not of those that are ``expected`` of the graph, of memory that is not to be had, since eager may need
    less, nor of a call that a graph is not for.
    """
    none_of_faults: tuple[type[Exception], ...] = (RunsAsWritten, *expected)

    def run(
        error: BaseException,
        function: types.FunctionType,
        positional: tuple[Any, ...],
        only_keyword: dict[str, Any],
        rest: tuple[Any, ...],
        named: dict[str, Any],
        drawn: tuple[Any, ...],
    ) -> Any:
        if isinstance(error, LeavesChanges):
            raise error.error
        if not isinstance(error, Exception) or raised_by_hook(error):
            raise error  # interrupts and errors of hooks are none of the graph's
        for taken in drawn[-1:]:
            taken.take_back()
        result = function(*positional, *rest, **only_keyword, **named)
        if on_error is not None and not (isinstance(error, none_of_faults) or _wants_memory(error)):
            raised = GraphRaisedError(f"the program raises nothing, its graph {error!r}")
            raised.__cause__ = error
            on_error(raised, location)
        return result

    return _frame_hook.disabled(run)


def _wants_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class _HasEntries(Protocol):
    def entries(self, code: types.CodeType) -> Iterable[_frame_hook.Entry]: ...


def noting_refuted(
    function: Callable[..., Any],
    frame: FrameInput,
    places: tuple[ProgramPoint, ...],
    converter: _HasEntries,
) -> Callable[..., Any]:
    """``function``; where it raises, the code is compiled again without relying on what it assumes.

    But not for one call among many: a loss that is not finite, say, now and then.
    """
    code, history = frame.code, frame.history
    compiled_by = weakref.ref(converter)
    calls = raised = 0

    def run(*arguments: Any) -> Any:
        nonlocal calls, raised
        calls += 1
        try:
            return function(*arguments)
        except Exception as error:  # an operator's own, which may come of an assumption that fails
            if raised_by_hook(error):
                raise
            raised += 1
            if raised <= 1 + calls // _CALLS_PER_EXCEPTION:
                raise
            history.refuted.update(places)
            owner = compiled_by()
            for entry in () if owner is None else owner.entries(code):
                entry.retire()
            raise

    return run
