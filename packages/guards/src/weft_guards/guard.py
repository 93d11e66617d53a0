"""A guard: a source, a predicate on the value found there, and why it is needed."""

from __future__ import annotations

from dataclasses import dataclass

from .predicates.base import Predicate
from .sources import Source


@dataclass(frozen=True)
class Reason:
    """The user's line that made the guard necessary, and what was done there."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Guard:
    """A condition for compiled code to be used again: ``predicate`` holds of the value at ``source``."""

    source: Source
    predicate: Predicate
    reason: Reason
