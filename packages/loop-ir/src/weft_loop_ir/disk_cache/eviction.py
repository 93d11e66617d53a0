"""Keeping caches small: what was used longest ago goes, and what processes that were killed have left.

An entry is all files whose names begin with one hash (``KEY.so``, ``KEY.sum``, ``headers-KEY/``); other
files are nobody's and stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_LIMIT = 4 << 30
RECENT_SECONDS = 60.0
"""What was used so lately may be in use: a library that is built, but not loaded yet."""

ORPHAN_SECONDS = 3600.0
"""How old a temporary file, a lock or half of an entry is that nobody can be working on."""

KEY = re.compile(r"(?:headers-)?([0-9a-f]{32,64})(?![0-9a-z])")
TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}(?![a-z0-9_])")
INNER = "work"
"""A folder in a cache whose folders are entries too, by names of another kind (Triton's own cache)."""

PARTNERS = ((".so", ".sum"), (".cubin", ".json"))
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_written: dict[Path, int] = {}  # bytes since the folder was looked through
_limits: dict[Path, int] = {}  # that this process was asked to keep


def size_limit() -> int:
    """Bytes that a cache may have: ``$WEFT_CACHE_LIMIT`` (``500M``, ``2G``, bytes), or 4 GiB; 0 is any."""
    text = (
        os.environ.get("WEFT_CACHE_LIMIT", "").strip().upper().removesuffix("B").removesuffix("I")
    )
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return max(0, int(float(text.removesuffix(unit)) * UNITS[unit]))
    except (ValueError, OverflowError):
        return DEFAULT_LIMIT


def set_limit(folder: Path, limit: int | None) -> None:
    """Have this process keep ``folder`` below ``limit`` bytes; None: as :func:`size_limit` says."""
    if limit is None:
        _limits.pop(folder, None)
    else:
        _limits[folder] = limit


def _limit_of(folder: Path) -> int:
    limit = _limits.get(folder)
    return size_limit() if limit is None else limit


def note_written(folder: Path, size: int) -> None:
    """Count bytes written to ``folder``, which is looked through at the first and now and then."""
    limit = _limit_of(folder)
    is_first = folder not in _written
    _written[folder] = _written.get(folder, 0) + size
    if is_first or (limit and _written[folder] > limit / 16):
        _written[folder] = 0
        collect(folder)


def mark_used(path: Path) -> None:
    """Note that the entry of this file was used now."""
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)


@dataclass
class _Entry:
    """The paths of one entry, their bytes, and when one of them was written or used last."""

    paths: list[str] = field(default_factory=list)
    size: int = 0
    used: float = 0.0

    def add(self, item: os.DirEntry[str]) -> None:
        info = item.stat(follow_symlinks=False)
        self.paths.append(item.path)
        self.size += info.st_blocks * 512
        self.used = max(self.used, info.st_mtime)
        if item.is_dir(follow_symlinks=False):
            for inner in _items(item.path):
                with contextlib.suppress(OSError):
                    self.add(inner)

    def is_orphan(self, now: float) -> bool:
        """Whether what was left of an entry can't be used by anybody."""
        ends = {os.path.splitext(path)[1] for path in self.paths}
        halves = any((a in ends) != (b in ends) for a, b in PARTNERS)
        return now - self.used > ORPHAN_SECONDS and (halves or ends == {".lock"})

    def remove(self) -> None:
        for path in self.paths:
            try:
                os.unlink(path)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)


def collect(folder: Path, limit: int | None = None) -> None:
    """Remove orphans from ``folder``, then the oldest entries until ``limit`` bytes are left at most.

    None: what the folder was given as its limit.
    """
    limit = _limit_of(folder) if limit is None else limit
    now = time.time()
    entries = _entries(folder, now)
    for entry in [e for e in entries if e.is_orphan(now)]:
        entry.remove()
        entries.remove(entry)
    total = sum(entry.size for entry in entries)
    for entry in sorted(entries, key=lambda e: e.used):
        if not limit or total <= limit or now - entry.used < RECENT_SECONDS:
            break
        entry.remove()
        total -= entry.size


def _entries(folder: Path, now: float) -> list[_Entry]:
    """The entries in ``folder``; removes temporary files and locks that nobody has any more."""
    found: dict[str, _Entry] = {}
    for item in _items(folder):
        with contextlib.suppress(OSError):
            key = KEY.match(item.name)
            is_old = now - item.stat(follow_symlinks=False).st_mtime > ORPHAN_SECONDS
            if is_old and (TEMPORARY.match(item.name) or (key and item.name.endswith(".lock"))):
                (leftover := _Entry()).add(item)
                leftover.remove()
            elif key:
                found.setdefault(item.name[: key.end()], _Entry()).add(item)
            elif item.name == INNER and item.is_dir(follow_symlinks=False):
                for inner in _items(item.path):
                    found.setdefault(inner.path, _Entry()).add(inner)
    return list(found.values())


def _items(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            yield from items
    except OSError:
        return
