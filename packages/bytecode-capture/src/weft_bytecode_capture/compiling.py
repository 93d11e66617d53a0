"""What a program may ask about its own compilation."""

from __future__ import annotations


def is_compiling() -> bool:
    """Whether the call is being captured: False when it runs, True in captured code."""
    return False
