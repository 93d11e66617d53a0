"""Watching compilation: observers of captured frames and compiled graphs, per thread of control."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from weft_bytecode_capture import UserLocation

from .graph_report import GraphObserver, GraphReport
from .locations import describe_frames

_observers: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(
    "weft_observers", default=()
)


@dataclass
class CompileLog:
    """What happened while :func:`observe` was active: one entry a captured frame, one a graph.

    Subclass and override ``stage_started`` to show progress.
    """

    conversions: list[Any] = field(default_factory=list)
    graphs: list[GraphReport] = field(default_factory=list)

    def stage_started(self, location: str, stage_name: str) -> None:
        """A graph enters a stage."""

    def graph_finished(self, report: GraphReport) -> None:
        """A graph has been through all stages, or has failed in one."""
        self.graphs.append(report)

    def frame_converted(self, report: Any) -> None:
        """A frame was captured, or left alone (:class:`weft_bytecode_capture.CaptureReport`)."""
        self.conversions.append(report)

    @property
    def kernel_count(self) -> int:
        """Kernels of all graphs together."""
        return sum(report.kernel_count for report in self.graphs)

    @property
    def graph_breaks(self) -> list[Any]:
        """The breaks, in order (:class:`weft_bytecode_capture.GraphBreak`)."""
        found = (report.graph_break for report in self.conversions)
        return [graph_break for graph_break in found if graph_break is not None]


@contextlib.contextmanager
def observe(log: CompileLog) -> Iterator[CompileLog]:
    """Report every compilation inside the block to ``log``."""
    token = _observers.set((*_observers.get(), log))
    try:
        yield log
    finally:
        _observers.reset(token)


def active_observers() -> tuple[CompileLog, ...]:
    """Those of :func:`observe` around the running code."""
    return _observers.get()


class Observer(GraphObserver, Protocol):
    """Is told of frames too."""

    def frame_converted(self, report: Any) -> None: ...


@runtime_checkable
class ShowsCapture(Protocol):
    """Is told when the capture of a frame begins, before any graph enters a stage."""

    def frame_began(self, location: str) -> None: ...


@dataclass(frozen=True)
class Watch:
    """Who is told of what is compiled: ``standing`` in every call, besides those of :func:`observe`."""

    standing: tuple[Observer, ...] = ()

    def observers(self) -> tuple[Observer, ...]:
        return (*active_observers(), *self.standing)

    def frame_began(self, location: UserLocation) -> None:
        """Tell those that show progress that a frame is captured from now on."""
        for observer in self.observers():
            if isinstance(observer, ShowsCapture):
                observer.frame_began(describe_frames((location,)))

    def frame_converted(self, report: Any) -> None:
        """Hand a captured frame's report to all of them."""
        for observer in self.observers():
            observer.frame_converted(report)
