"""What becomes of one captured graph: observers are told while it goes through the stages, and at the end."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft_loop_ir import Codegen, CompiledProgram

from .errors import stage


@dataclass(frozen=True)
class GraphReport:
    """What became of one captured graph.

    ``location`` names the user's line.  ``seconds`` maps stage names to wall-clock seconds: "program cache"
    alone where a kept program serves.  ``fallbacks`` counts operators that run as torch's own kernels.
    ``cache``: what the program cache did, ``hit``, ``miss, stored`` or ``not stored: REASON``.  ``codegen``
    names the class that made its programs, ``weft_codegen_cpp.CppCodegen`` say.
    """

    location: str
    kernel_count: int
    extern_count: int
    fallbacks: Mapping[str, int]
    seconds: Mapping[str, float]
    eager_reason: str | None  # why the graph runs eagerly, None if it is compiled
    cache: str = "not used"
    codegen: str | None = None


class GraphObserver(Protocol):
    """Is told as a graph goes through the stages, for progress displays and reports."""

    def stage_started(self, location: str, stage_name: str) -> None: ...

    def graph_finished(self, report: GraphReport) -> None: ...


Observers = Callable[[], tuple[GraphObserver, ...]]


class GraphRecord:
    """Collects what a :class:`GraphReport` says of the graph of the user's ``location``."""

    def __init__(
        self,
        location: str,
        observers: Observers,
        note: Callable[[GraphReport, Sequence[tuple[str, float, float]]], None] | None = None,
    ) -> None:
        """``note`` is told at the end, with the name, the beginning and the seconds of each stage."""
        self.location = location
        self._note = note
        self._timeline: list[tuple[str, float, float]] = []
        self.fallbacks: dict[str, int] = {}
        self._cache: tuple[Counter[str], Counter[str]] | None = None
        self.codegen: str | None = None
        self._observers = observers
        self._seconds: dict[str, float] = {}
        self._kernels = 0
        self._externs = 0

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The context of one stage: errors name it, its wall-clock seconds are recorded."""
        for observer in self._observers():
            observer.stage_started(self.location, name)
        start, began = time.perf_counter(), time.time()
        try:
            with stage(name, self.location):
                yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + spent
            self._timeline.append((name, began, spent))

    def count(
        self, programs: Sequence[CompiledProgram], fallbacks: Mapping[str, int], codegen: Codegen
    ) -> None:
        """Count what ``programs`` run, which ``codegen`` has made."""
        made_by = type(codegen)
        self.codegen = f"{made_by.__module__.partition('.')[0]}.{made_by.__qualname__}"
        self._kernels += sum(program.kernel_count for program in programs)
        self._externs += sum(program.extern_count for program in programs)
        for name, count in fallbacks.items():
            self.fallbacks[name] = self.fallbacks.get(name, 0) + count

    def watch_cache(self, counts: Counter[str]) -> None:
        """What ``counts`` counts from now on, the program cache did for this graph."""
        self._cache = counts, counts.copy()

    def _cache_text(self) -> str:
        if self._cache is None:
            return "not used"
        counts, before = self._cache
        return ", ".join(counts - before) or "not used"

    def finish(self) -> None:
        """Report the whole."""
        self._tell(
            GraphReport(
                self.location,
                self._kernels,
                self._externs,
                self.fallbacks,
                self._seconds,
                None,
                self._cache_text(),
                self.codegen,
            )
        )

    def fail(self, reason: str) -> None:
        """Report that the graph runs eagerly."""
        self._tell(GraphReport(self.location, 0, 0, {}, {}, reason))

    def _tell(self, report: GraphReport) -> None:
        if self._note is not None:
            self._note(report, self._timeline)
        for observer in self._observers():
            observer.graph_finished(report)
