"""What an evaluation read of the objects from outside, in order: by it another call is found to be alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft_guards import Predicate, Reason, Source

from ..variables.base import Variable


@dataclass(slots=True, eq=False)
class Wrapped:
    """An object was read at ``source``; ``variable`` stands for it, None while it is being made."""

    source: Source
    value: Any
    was_known: bool
    """Whether some variable stood for it before."""
    is_nested: bool
    """Whether it was read while another was made a variable of."""
    reason: Reason
    variable: Variable | None = None


@dataclass(slots=True, eq=False)
class Guarded:
    """A guard was asked for, be it new or not; or, unless ``is_guard``, a fact was relied on."""

    source: Source
    predicate: Predicate
    is_nested: bool
    is_guard: bool
    reason: Reason


@dataclass(slots=True, eq=False)
class Identified:
    """What followed depends on which object this is, beyond how it looks."""

    value: Any


@dataclass(slots=True, eq=False)
class IdentifiedAt:
    """What followed depends on whether guards fix which object is at ``source``."""

    source: Source


Event = Wrapped | Guarded | Identified | IdentifiedAt
