"""C++ statements, as lines."""

from __future__ import annotations

from collections.abc import Iterable


def indent(lines: Iterable[str]) -> list[str]:
    """``lines`` of a block."""
    return ["  " + line for line in lines]
