"""What a symbol in an index expression stands for.

Structures bind symbols: a loop, an ``indirect`` instruction, an input, a call that depends on data.  A
symbol's name says nothing.
"""

from __future__ import annotations

import enum


class SymbolKind(enum.Enum):
    """Who gives a symbol its value."""

    LOOP = "loop"
    """A loop whose iterations are independent."""
    INNER_LOOP = "inner loop"
    """A loop inside one iteration of these: over what is reduced, scanned, or kept in a row."""
    INDIRECT = "indirect"
    """A value of the body."""
    SIZE = "size"
    """The caller, or a call before: a size or a number of the program, a counter of a loop around it."""
