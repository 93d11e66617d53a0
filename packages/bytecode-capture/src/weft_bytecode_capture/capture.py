"""Compiling frames with a backend of the caller's, and capture alone, for analysis."""

from __future__ import annotations

import functools
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

import torch.fx
from weft_guards import Guard

from . import _frame_hook
from ._frame_hook import Context
from .captured_graph import (
    Backend,
    CapturedGraph,
    DropControlFlow,
    GraphBreak,
)
from .frame.capture_report import CaptureReport
from .frame.convert_frame import clear_contexts, make_context
from .symbolic.frame_result import CaptureOptions
from .symbolic.graph.plain_runs import refused_by_torch
from .user_location import UserLocation

F = TypeVar("F", bound=Callable[..., Any])


def compile_frames(
    function: F,
    backend: Backend,
    options: CaptureOptions | None = None,
    on_error: Callable[[Exception, str], None] | None = None,
    observer: Callable[[CaptureReport], None] | None = None,
) -> F:
    """The function, its tensor operations captured as graphs and run as the backend compiles them.

    All Python frames that run inside a call are subject to capture, each root frame with a cache of its
    own; frames outside are not affected.  ``on_error(error, location)`` is called for an error of capture
    or of the backend: it raises, or returns, and the frame runs as plain Python (default: raise).
    ``observer`` is given a :class:`CaptureReport` for each frame converted.

    :raises TypeError: ``function`` is not callable.
    """
    return compile_in(make_context(backend, options, on_error, observer), function)


def compile_in(context: Context, function: F) -> F:
    """As :func:`compile_frames`, in a ``context`` that may have compiled code already, or have it for others.

    :raises TypeError: ``function`` is not callable.
    """
    return _dressed(context.wrap(function), function)


@overload
def disable(function: F) -> F: ...
@overload
def disable(function: None = None) -> Callable[[F], F]: ...
def disable(function: F | None = None) -> Any:
    """The function, never captured nor what it calls, also inside a compiled call.

    A decorator too, with or without parentheses.

    :raises TypeError: ``function`` is not callable.
    """
    if function is None:
        return disable
    return _dressed(_frame_hook.disabled(function), function)


def allow_in_graph(function: F) -> F:
    """Make every call of ``function`` in captured code one node of the graph.  Also a decorator.

    Its body is not looked at: it takes tensors and constants, gives tensors, has no effect beside, and does
    the same on tensors without data.  The function is kept alive from then on.

    :raises TypeError: ``function`` is not callable, or a module or class.
    """
    if isinstance(function, (type, torch.nn.Module)) or not callable(function):
        raise TypeError(f"allow_in_graph takes a function, got {type(function).__name__}")
    from .symbolic.models.torch.torch_function import put_into_graph

    put_into_graph(function)
    return function


def assume_constant_result(function: F) -> F:
    """Have calls of ``function`` in captured code made once, while capturing; their results are constants.

    Nothing checks that later calls would give the same.  Arguments and results are plain constants, or tuples
    of these; a call with others breaks the graph.  Also a decorator.

    :raises TypeError: ``function`` is not callable.
    """
    if not callable(function):
        raise TypeError(f"assume_constant_result takes a function, got {type(function).__name__}")
    from .symbolic.models.functions.marked_functions import give_constant

    give_constant(function)
    return function


def substitute_in_graph(original: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator: the plain Python function that captured code evaluates where it calls ``original``.

    ``original`` is a function that capture can't look into, of a C extension say.  Calls outside of captured
    code still go to it.

    :raises TypeError: one of them is no function.
    """
    if isinstance(original, type) or not callable(original):
        raise TypeError(f"substitute_in_graph takes a function, got {type(original).__name__}")

    def register(function: F) -> F:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"a Python function substitutes, not {type(function).__name__}")
        from .symbolic.models.table import polyfill

        polyfill(original)(function)
        return function

    return register


def reset() -> None:
    """Forget all compiled code of all compiled functions; each compiles anew when it is called again."""
    clear_contexts()


def _dressed(wrapper: _frame_hook.Wrapper, function: F) -> F:
    if isinstance(function, types.MethodType):  # its parts are there as the method's own are
        context = wrapper.context
        inner: Any = function.__func__
        part = _frame_hook.disabled(inner) if context is None else context.wrap(inner)
        wrapper.__dict__.update(__self__=function.__self__, __func__=_dressed(part, inner))
    if not isinstance(function, torch.nn.Module):  # its attributes are state, not description
        functools.update_wrapper(wrapper, function)
    else:
        wrapper.__dict__["__wrapped__"] = function
    return cast(F, wrapper)


@dataclass(frozen=True)
class CaptureResult:
    """What one call of a captured function gave: its result, and all that was captured in it.

    ``reports`` has one entry for each frame met, in the order of conversion; ``graphs`` and ``breaks`` are
    those of the reports, ``guards`` those of all of them without repetition.  ``str()`` shows it all.
    """

    result: Any
    reports: tuple[CaptureReport, ...]

    @property
    def graphs(self) -> tuple[CapturedGraph, ...]:
        return tuple(report.graph for report in self.reports if report.graph is not None)

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        found = (report.graph_break for report in self.reports)
        return tuple(graph_break for graph_break in found if graph_break is not None)

    @property
    def guards(self) -> tuple[Guard, ...]:
        found: dict[str, Guard] = {}
        for report in self.reports:
            for guard in report.guards:
                found.setdefault(_guard_line(guard), guard)
        return tuple(found.values())

    def __str__(self) -> str:
        return "\n".join(_describe(self))

    def __repr__(self) -> str:
        return f"<CaptureResult: {len(self.graphs)} graphs, {len(self.breaks)} graph breaks>"


def capture(
    function: Callable[..., Any],
    *,
    options: CaptureOptions | None = None,
    backend: Backend | None = None,
) -> Callable[..., CaptureResult]:
    """A callable that runs ``function`` with its tensor operations captured, and says what was captured.

    Graphs run as they are unless a ``backend`` compiles them.  Graphs are captured anew where their guards
    do not hold; a call in which every frame is known has no reports.
    """
    reports: list[CaptureReport] = []
    compiled = compile_frames(function, backend or _run_graph, options, None, reports.append)

    def run(*args: Any, **kwargs: Any) -> CaptureResult:
        reports.clear()
        result = compiled(*args, **kwargs)
        return CaptureResult(result, tuple(reports))

    return run


def _run_graph(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    if refused := refused_by_torch(graph_module):
        raise DropControlFlow(refused)
    return graph_module.forward


# Printing.


def _describe(result: CaptureResult) -> Iterator[str]:
    number = 0
    for report in result.reports:
        place = _place(report.location)
        if report.graph is None:
            if report.skip_reason is not None:
                yield f"not captured: {place}: {report.skip_reason}"
        else:
            number += 1
            yield f"graph {number}: {place}"
            yield textwrap.indent(report.graph.graph_module.code.strip(), "    ")
            yield "  guards:"
            yield from (f"    {_guard_line(guard)}" for guard in report.guards)
        if report.graph_break is not None:
            yield from _break_lines(report.graph_break)


def _guard_line(guard: Guard) -> str:
    reason = guard.reason
    return (
        f"{guard.source.name()}: {guard.predicate.expected_text()}"
        f"  # {reason.file}:{reason.line}: {reason.text}"
    )


def _break_lines(graph_break: GraphBreak) -> Iterator[str]:
    yield f"  break: {graph_break.kind} at {_place(graph_break.location)}"
    for call in graph_break.stack:
        yield f"    called from {_place(call)}"
    for name, text in (
        ("context", graph_break.context),
        ("explanation", graph_break.explanation),
        *(("hint", hint) for hint in graph_break.hints),
    ):
        if text:
            yield f"    {name}: {text}"


def _place(location: UserLocation) -> str:
    return f"{location.function} ({location.file}:{location.line})"
