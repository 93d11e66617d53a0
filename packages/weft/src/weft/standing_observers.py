"""Who is told of every compilation without being asked: the logs, and the progress line of a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .dump_facts import FrameDump
from .logs import LogWriter
from .progress import terminal_line
from .report import Observer


def standing_observers(logs: frozenset[str], dump: Path | None = None) -> tuple[Observer, ...]:
    """The writer of ``logs`` if there are any, and a progress line where standard error is a terminal.

    ``dump``: the folder that frames are written to, None for nowhere.
    """
    found: list[Observer] = []
    if logs:
        found.append(LogWriter(logs))
    if dump is not None:
        found.append(FrameDump(dump))
    if sys.stderr.isatty() and os.environ.get("WEFT_PROGRESS", "1") != "0":
        found.append(terminal_line())
    return tuple(found)
