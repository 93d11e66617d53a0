"""The error for a graph that loops can't express."""

from __future__ import annotations


class Unsupported(RuntimeError):
    """``kind`` names the gap, ``context`` the node, ``hint`` what can be done."""

    def __init__(self, kind: str, context: str, hint: str) -> None:
        super().__init__(f"{kind}: {context}. {hint}")
        self.kind = kind
        self.context = context
        self.hint = hint
