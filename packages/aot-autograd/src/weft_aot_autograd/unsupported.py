"""The one exception by which this package says that it does not handle a graph."""

from __future__ import annotations


class Unsupported(Exception):
    """The graph can't be prepared.

    ``kind`` is a short constant phrase that classifies the case, ``context`` the operator or values at
    hand, ``hint`` what a user can do.
    """

    def __init__(self, kind: str, context: str = "", hint: str = "") -> None:
        super().__init__(kind, context, hint)
        self.kind = kind
        self.context = context
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.kind}: {self.context}" if self.context else self.kind
        return f"{text} ({self.hint})" if self.hint else text
