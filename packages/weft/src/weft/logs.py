"""``WEFT_LOGS``: what weft tells on standard error while it compiles."""

from __future__ import annotations

import atexit
import dis
import functools
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TextIO

from weft_bytecode_capture import CaptureReport

from .graph_report import GraphReport
from .locations import describe_frames


def requested_logs(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names in ``WEFT_LOGS``, separated by commas.

    :raises ValueError: a name that is no log.
    """
    names = frozenset(
        name.strip() for name in environment.get("WEFT_LOGS", "").split(",") if name.strip()
    )
    unknown = names - ALL_LOGS.keys() - {"help"}
    if unknown:
        raise ValueError(
            f"WEFT_LOGS: unknown {sorted(unknown)}, known are {sorted(ALL_LOGS)} and help"
        )
    return names


# -- of frames ---------------------------------------------------------------------------------------------


def recompile_text(report: CaptureReport) -> str | None:
    """Why a frame was compiled again, None when it was not: the guard, the user's line, the remedy."""
    return _told("recompiling", report, report.recompile_reason)


def break_text(report: CaptureReport) -> str | None:
    """Where and why the graph ended before the frame did, None when it did not."""
    return _told("graph break in", report, report.graph_break)


def guards_text(report: CaptureReport) -> str | None:
    """What a later call must fulfil to use the compiled code, a line a guard."""
    lines = [
        f"{guard.source.name()}: {guard.predicate.expected_text()}"
        f"  # {guard.reason.file}:{guard.reason.line}"
        for guard in report.guards
    ]
    return _told("guards of", report, "\n".join(lines))


def graph_text(report: CaptureReport) -> str | None:
    """The captured graph as Python code, None when there is none."""
    return _told("graph of", report, report.graph and report.graph.graph_module.code.strip())


def bytecode_text(report: CaptureReport) -> str | None:
    """The instructions that take the frame's place, as ``dis`` prints them; None where it runs as it is."""
    if report.transformed_code is None:
        return None
    return _told("bytecode of", report, dis.Bytecode(report.transformed_code).dis())


def _told(what: str, report: CaptureReport, text: object) -> str | None:
    if not text:
        return None
    place = f"{report.location.function} ({report.location.file}:{report.location.line})"
    user = describe_frames((report.location,), report.callers)
    called = user.rpartition(", through ")[0]
    if called:
        place += f", called at {called}"
    return f"weft: {what} {place}\n{textwrap.indent(str(text), '  ')}"


# -- of graphs ---------------------------------------------------------------------------------------------


def cache_text(report: GraphReport) -> str | None:
    """What the program cache did for a graph."""
    return (
        None if report.eager_reason else f"weft: program cache of {report.location}: {report.cache}"
    )


def fallbacks_text(report: GraphReport) -> str | None:
    """Why a graph runs eagerly, or which of its operators run as torch's own kernels; None for no such."""
    if report.eager_reason is not None:
        return f"weft: eager: {report.location}: {report.eager_reason}"
    if not report.fallbacks:
        return None
    ordered = sorted(report.fallbacks.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{name} ({count})" for name, count in ordered)
    return f"weft: operators without a kernel of weft's in {report.location}: {told}"


def perf_text(report: GraphReport) -> str | None:
    """What a graph has become, and the seconds that each stage took."""
    if report.eager_reason is not None:
        return None
    stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in report.seconds.items())
    return (
        f"weft: compiled {report.location}: {report.kernel_count} kernels, "
        f"{report.extern_count} library calls; {stages}"
    )


FRAME_LOGS: Final[Mapping[str, Callable[[CaptureReport], str | None]]] = {
    "bytecode": bytecode_text,
    "graph_breaks": break_text,
    "graph_code": graph_text,
    "guards": guards_text,
    "recompiles": recompile_text,
}
"""What each log tells of a frame that was compiled; names as in ``TORCH_LOGS``."""

GRAPH_LOGS: Final[Mapping[str, Callable[[GraphReport], str | None]]] = {
    "cache": cache_text,
    "fallbacks": fallbacks_text,
    "perf": perf_text,
}
"""What each log tells of a graph that has been through the stages."""

ALL_LOGS: Final[Mapping[str, str]] = {
    "bytecode": "the instructions that take a frame's place",
    "cache": "what the program cache did for each graph, and why a program is not kept",
    "fallbacks": "graphs that run eagerly, and operators that run as torch's own kernels",
    "graph_breaks": "where and why graphs end before their functions do, with hints",
    "graph_code": "captured graphs as Python code",
    "guards": "what a later call must fulfil to use the compiled code",
    "perf": "kernels, library calls and the seconds of each stage, of each graph",
    "progress": "each stage as a graph enters it",
    "recompiles": "what was compiled again: the guard that failed, the line, the remedy",
    "summary": "the totals of all that was compiled, when the process ends",
}
"""All names of ``WEFT_LOGS``, each with what it tells."""


def help_text() -> str:
    """What ``WEFT_LOGS=help`` tells."""
    rows = [f"  {name:<13} {text}" for name, text in ALL_LOGS.items()]
    return "\n".join(["WEFT_LOGS takes names, separated by commas:", *rows])


@dataclass
class Totals:
    """What was compiled, counted."""

    frames: int = 0
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    eager: int = 0
    kernels: int = 0
    externs: int = 0
    fallbacks: int = 0
    hits: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add_frame(self, report: CaptureReport) -> None:
        self.frames += 1
        self.breaks += report.graph_break is not None
        self.recompiles += report.recompile_reason is not None
        spent = self.seconds.get("capture and compile", 0.0)
        self.seconds["capture and compile"] = spent + report.seconds

    def add_graph(self, report: GraphReport) -> None:
        self.graphs += 1
        self.eager += report.eager_reason is not None
        self.kernels += report.kernel_count
        self.externs += report.extern_count
        self.fallbacks += sum(report.fallbacks.values())
        self.hits += report.cache.startswith("hit")
        for name, seconds in report.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def __str__(self) -> str:
        seconds = ", ".join(f"{name} {spent:.2f} s" for name, spent in self.seconds.items())
        return (
            f"weft: {self.frames} frames, {self.graphs} graphs ({self.hits} from the cache, "
            f"{self.eager} eager), {self.breaks} graph breaks, {self.recompiles} recompilations, "
            f"{self.kernels} kernels, {self.externs} library calls, {self.fallbacks} fallbacks; "
            f"{seconds or 'nothing was compiled'}"
        )


@functools.cache
def process_totals() -> Totals:
    """The totals of this process, which are printed when it ends."""
    totals = Totals()
    atexit.register(lambda: sys.stderr.write(f"{totals}\n"))
    return totals


@functools.cache
def _print_help() -> None:
    sys.stderr.write(f"{help_text()}\n")


class LogWriter:
    """Writes the requested logs to ``stream``, by default standard error; is told of frames and of graphs."""

    def __init__(self, logs: frozenset[str], stream: TextIO | None = None) -> None:
        self._frame_logs = [FRAME_LOGS[name] for name in sorted(logs & FRAME_LOGS.keys())]
        self._graph_logs = [GRAPH_LOGS[name] for name in sorted(logs & GRAPH_LOGS.keys())]
        self._shows_stages = "progress" in logs
        self._totals = process_totals() if "summary" in logs else None
        self._stream = stream
        if "help" in logs:
            _print_help()

    def frame_converted(self, report: CaptureReport) -> None:
        if self._totals is not None:
            self._totals.add_frame(report)
        for text_of in self._frame_logs:
            self._write(text_of(report))

    def stage_started(self, location: str, stage_name: str) -> None:
        if self._shows_stages:
            self._write(f"weft: {stage_name}: {location}")

    def graph_finished(self, report: GraphReport) -> None:
        if self._totals is not None:
            self._totals.add_graph(report)
        for text_of in self._graph_logs:
            self._write(text_of(report))

    def _write(self, text: str | None) -> None:
        if text is not None:
            print(text, file=sys.stderr if self._stream is None else self._stream)
