"""Lines of source that capture reads: the program's ``linecache`` does not show it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_read: dict[str, Any] = {}
"""What earlier conversions have read of files, as entries of ``linecache.cache``."""


@contextmanager
def linecache_unchanged() -> Iterator[None]:
    """A context after which ``linecache.cache`` has no file that it had not before.

    Text of code that has no file, such as a graph's, stays: nothing could read it again.
    """
    cache: dict[str, Any] = linecache.cache
    before = set(cache)
    for name, entry in _read.items():
        if name not in before:
            cache[name] = entry
            linecache.checkcache(name)  # drops it where the file has changed
    try:
        yield
    finally:
        for name in set(cache) - before:
            entry = cache.get(name, ())
            if len(entry) == 4 and entry[1] is not None:  # has a file's time of modification
                _read[name] = cache.pop(name, entry)
