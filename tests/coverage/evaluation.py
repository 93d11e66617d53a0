"""Which cases' schedules the reference evaluator runs, where tests are about what comes before C++.

``WEFT_COMPILED_EVERY`` is how many of a file's cases follow each other until one is compiled as C++.  Without
it all are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

FOLDERS = frozenset({"autograd", "operators", "regions", "transforms"})
"""Of `tests/`: what their files prove is done before C++ is written, and shows as the evaluator runs it."""

EVALUATED = pytest.StashKey[bool]()


def mark_evaluated(items: Iterable[pytest.Item]) -> None:
    """Say of each case whether it is evaluated.

    Not those marked ``native``, and of a file's others the first and every so many behind it.
    """
    every = int(os.environ.get("WEFT_COMPILED_EVERY", "1"))
    numbers: dict[Path, int] = {}
    for item in items:
        if item.path.parent.name not in FOLDERS or any(map(item.get_closest_marker, LEFT_ALONE)):
            continue
        number = numbers[item.path] = numbers.get(item.path, -1) + 1
        item.stash[EVALUATED] = number % every != 0


LEFT_ALONE = ("native", "slow", "gpu")
