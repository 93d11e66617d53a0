"""A line of the user's code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UserLocation:
    """A place in the user's code; ``function`` is the qualified name."""

    file: str
    line: int
    function: str
