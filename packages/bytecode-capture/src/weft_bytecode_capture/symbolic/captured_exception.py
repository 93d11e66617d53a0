"""How an exception of the captured program travels through the evaluator."""

from __future__ import annotations

from typing import Any


class CapturedException(Exception):
    """The captured program raised ``exception``, a variable for an exception object.

    Never confused with an exception of the evaluator itself: those are bugs, or ``Unsupported``.
    """

    def __init__(self, exception: Any) -> None:  # its model imports this
        super().__init__(repr(exception))
        self.exception = exception
