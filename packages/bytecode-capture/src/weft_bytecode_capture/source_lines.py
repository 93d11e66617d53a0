"""Lines of source that capture reads: the program's ``linecache`` does not show it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_read: dict[str, Any] = {}
"""What earlier conversions have read of files, as entries of ``linecache.cache``."""

_unchecked: set[str] = set()
"""Files whose entries conversions have put into the cache, and of which nothing has been read there since."""


@contextmanager
def linecache_unchanged() -> Iterator[None]:
    """A context after which ``linecache.cache`` has no file that it had not before.

    Text of code that has no file, such as a graph's, stays: nothing could read it again.  What has been read
    of a file is checked where it is read again, by :func:`source_line` or, as they do, by tracebacks and
    ``inspect``: to look at hundreds of files takes milliseconds.
    """
    cache: dict[str, Any] = linecache.cache
    before = set(cache)
    known = {name: entry for name, entry in _read.items() if name not in before}
    _unchecked.update(known)
    cache.update(known)
    try:
        yield
    finally:
        for name in set(cache) - before:
            entry = cache.get(name, ())
            if len(entry) == 4 and entry[1] is not None:  # has a file's time of modification
                _read[name] = cache.pop(name, entry)


def source_line(file: str, line: int) -> str:
    """The line of the file as it is now, without blanks around it; empty where there is none."""
    if file in _unchecked:
        _unchecked.discard(file)
        linecache.checkcache(file)  # drops it where the file has changed
    return linecache.getline(file, line).strip()
