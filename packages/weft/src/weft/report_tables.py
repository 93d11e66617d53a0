"""Tables that the command line prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from .caches import CacheInfo
from .doctor import Finding


def findings_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding; what is to be done stands below it."""
    table = _table("", "", "found")
    for finding in findings:
        mark = "ok" if finding.remedy is None else ("!!" if finding.is_fatal else "note")
        style = {"ok": "green", "note": "yellow", "!!": "bold red"}[mark]
        found = Text(finding.found)
        if finding.remedy is not None:
            found.append(f"\n-> {finding.remedy}", style=style)
        table.add_row(Text(mark, style=style), Text(finding.name), found)
    return table


def caches_table(infos: Sequence[CacheInfo]) -> Table:
    """A row for each cache."""
    table = _table("cache", "folder", "entries", "bytes")
    for info in infos:
        folder = Text(str(info.folder))
        if info.problem is not None:
            folder.append(f"\n{info.problem}", style="bold red")
        table.add_row(info.name, folder, str(info.entries), str(info.size))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1), show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
