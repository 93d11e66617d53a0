"""Loops of the program inside a kernel that end when no element goes on: how they are printed, and cost."""

from __future__ import annotations

from collections.abc import Sequence

from weft_loop_ir import Stage

EXPECTED_ITERATIONS = 32
"""Of a loop that data ends."""


def ending(flags: str, elements: str, tag: str) -> list[str]:
    """What leaves a loop where none of the ``elements`` of ``flags`` is set in a lane that takes part.

    The others compute something too, from zeros, which may never end.
    """
    return [
        "bool goes_on = false;",
        f"for (int k = 0; k < {elements}; ++k) goes_on |= {tag}.active(k) && {flags}[k];",
        "if (!goes_on) break;",
    ]


def unbounded(stage: Stage, body: Sequence[str]) -> list[str]:
    """``body``, in a loop if nothing but its flag ends ``stage``."""
    if stage.goes_on is None or stage.inner:
        return list(body)
    return ["for (;;) {", *("  " + line for line in body), "}"]


def expected_sizes(stage: Stage) -> list[str]:
    """What else the cost of an iteration is multiplied with."""
    return [str(EXPECTED_ITERATIONS)] if stage.goes_on is not None and not stage.inner else []
