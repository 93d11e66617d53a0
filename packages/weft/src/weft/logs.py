"""``WEFT_LOGS``: what weft tells on standard error while it compiles."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from weft_bytecode_capture import CaptureReport

LOGS: Final = frozenset({"recompiles"})


def requested_logs(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names in ``WEFT_LOGS``, separated by commas.

    :raises ValueError: a name that is no log.
    """
    names = frozenset(
        name.strip() for name in environment.get("WEFT_LOGS", "").split(",") if name.strip()
    )
    unknown = names - LOGS
    if unknown:
        raise ValueError(f"WEFT_LOGS: unknown {sorted(unknown)}, known are {sorted(LOGS)}")
    return names


def recompile_text(report: CaptureReport) -> str | None:
    """Why a frame was compiled again, None when it was not: the guard, the user's line, the remedy."""
    failure = report.recompile_reason
    if failure is None:
        return None
    place = f"{report.location.function} ({report.location.file}:{report.location.line})"
    return f"weft: recompiling {place}\n{textwrap.indent(str(failure), '  ')}"


def with_logs(
    observer: Callable[[CaptureReport], None],
    logs: frozenset[str],
    stream: TextIO | None = None,
) -> Callable[[CaptureReport], None]:
    """An observer that also writes the requested logs to ``stream``, by default standard error."""
    if "recompiles" not in logs:
        return observer

    def observe_and_log(report: CaptureReport) -> None:
        text = recompile_text(report)
        if text is not None:
            print(text, file=sys.stderr if stream is None else stream)
        observer(report)

    return observe_and_log
