"""Options of functionalization."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FunctionalizeOptions:
    """``verify``: prove after the conversion that no operator writes.

    ``aliased_inputs``: groups of positions of user inputs known to share storage.  A graph that mutates
    one of a group is not supported; what the example inputs themselves share is found without this.
    """

    verify: bool = True
    aliased_inputs: tuple[frozenset[int], ...] = ()
