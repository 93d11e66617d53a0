"""A line on the terminal while compiling takes long: the stage, the graph, what is done."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from .graph_report import GraphReport

DELAY_SECONDS = 2.0
"""How long compiling goes on in silence."""

PAUSE_SECONDS = 1.0
"""What is compiled so soon after a graph belongs to the same wait."""


class Line(Protocol):
    """A text on the terminal that changes."""

    def start(self) -> None: ...

    def update(self, text: str, /) -> None: ...

    def stop(self) -> None: ...


class ProgressLine:
    """Shows a line after two seconds of compiling and takes it away when the graph is done.

    Graphs that follow one another closely are one wait: the line is back at once for the next of them.
    """

    def __init__(
        self,
        delay: float = DELAY_SECONDS,
        make_line: Callable[[str], Line] | None = None,
    ) -> None:
        """``make_line``: what gives the line for its first text; by default one on standard error."""
        self._delay = delay
        self._make_line = _RichLine if make_line is None else make_line
        self._lock = threading.Lock()
        self._shown: Line | None = None
        self._timer: threading.Timer | None = None
        self._text = ""
        self._began = 0.0
        self._ended = float("-inf")
        self._graphs = 0
        self._kernels = 0

    def stage_started(self, location: str, stage_name: str) -> None:
        with self._lock:
            now = time.monotonic()
            if self._timer is None and self._shown is None:
                if now - self._ended > PAUSE_SECONDS:
                    self._began, self._graphs, self._kernels = now, 0, 0
                self._start(max(0.0, self._began + self._delay - now))
            self._text = self._line(location, stage_name)
            if self._shown is not None:
                self._shown.update(self._text)

    def frame_began(self, location: str) -> None:
        self.stage_started(location, "capture")

    def graph_finished(self, report: GraphReport) -> None:
        with self._lock:
            self._graphs += 1
            self._kernels += report.kernel_count
            self._stop()
            self._ended = time.monotonic()

    def frame_converted(self, report: Any) -> None:
        """The end of a frame without a graph, or of an error, after which no graph is finished."""
        with self._lock:
            if self._timer is not None or self._shown is not None:
                self._ended = time.monotonic()
            self._stop()

    def _line(self, location: str, stage_name: str) -> str:
        done = f" ({self._graphs} graphs, {self._kernels} kernels done)" if self._graphs else ""
        return f"weft: {stage_name}: {location}{done}"

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        with self._lock:
            if self._timer is not None:  # not stopped meanwhile
                self._timer = None
                self._shown = self._make_line(self._text)
                self._shown.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


class _RichLine:
    """A spinner and a text on standard error."""

    def __init__(self, text: str) -> None:
        from rich.console import Console  # takes a while to import
        from rich.status import Status
        from rich.text import Text

        console = Console(stderr=True)
        self._width = max(20, console.width - 4)  # one line, beside the spinner
        self._text_of = Text
        self._status = Status(Text(text[: self._width]), console=console)

    def start(self) -> None:
        self._status.start()

    def update(self, text: str) -> None:
        self._status.update(self._text_of(text[: self._width]))

    def stop(self) -> None:
        self._status.stop()


@functools.cache
def terminal_line() -> ProgressLine:
    """The one line that this process has on its terminal."""
    return ProgressLine()
