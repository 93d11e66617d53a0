"""``WEFT_LOGS``: what weft tells on standard error while it compiles."""

from __future__ import annotations

import dis
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from weft_bytecode_capture import CaptureReport


def requested_logs(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names in ``WEFT_LOGS``, separated by commas.

    :raises ValueError: a name that is no log.
    """
    names = frozenset(
        name.strip() for name in environment.get("WEFT_LOGS", "").split(",") if name.strip()
    )
    unknown = names - LOGS.keys()
    if unknown:
        raise ValueError(f"WEFT_LOGS: unknown {sorted(unknown)}, known are {sorted(LOGS)}")
    return names


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
    return f"weft: {what} {place}\n{textwrap.indent(str(text), '  ')}"


LOGS: Final[Mapping[str, Callable[[CaptureReport], str | None]]] = {
    "bytecode": bytecode_text,
    "graph_breaks": break_text,
    "graph_code": graph_text,
    "guards": guards_text,
    "recompiles": recompile_text,
}
"""What each log tells of a frame that was compiled; names as in ``TORCH_LOGS``."""


def with_logs(
    observer: Callable[[CaptureReport], None],
    logs: frozenset[str],
    stream: TextIO | None = None,
) -> Callable[[CaptureReport], None]:
    """An observer that also writes the requested logs to ``stream``, by default standard error."""
    if not logs:
        return observer

    def observe_and_log(report: CaptureReport) -> None:
        for name in sorted(logs):
            text = LOGS[name](report)
            if text is not None:
                print(text, file=sys.stderr if stream is None else stream)
        observer(report)

    return observe_and_log
