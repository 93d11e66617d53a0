"""Which cases' schedules the reference evaluator runs, where tests are about what comes before C++.

``WEFT_COMPILED_EVERY`` is of how many cases one is compiled as C++, by a hash of its name: the same one
whatever others are run.  Without it all are.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

import pytest

FOLDERS = frozenset({"autograd", "operators", "regions", "transforms"})
"""Of `tests/`: what their files prove is done before C++ is written, and shows as the evaluator runs it."""

EVALUATED = pytest.StashKey[bool]()


def mark_evaluated(items: Iterable[pytest.Item]) -> None:
    """Say of each case whether it is evaluated: all but one of so many, none that is ``native``."""
    every = int(os.environ.get("WEFT_COMPILED_EVERY", "1"))
    for item in items:
        if item.path.parent.name in FOLDERS and not any(map(item.get_closest_marker, LEFT_ALONE)):
            item.stash[EVALUATED] = zlib.crc32(item.nodeid.encode()) % every != 0


LEFT_ALONE = ("native", "slow", "gpu")
