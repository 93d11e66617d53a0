"""The one exception by which this package and code generators say that they do not handle a graph."""

from __future__ import annotations


class Unsupported(RuntimeError):
    """A refusal of a graph or schedule: the pipeline may try another form of it, and no other error lets it.

    ``kind`` names the gap, ``context`` the node or values at hand, ``hint`` what can be done.
    """

    def __init__(self, kind: str, context: str = "", hint: str = "") -> None:
        text = f"{kind}: {context}" if context else kind
        super().__init__(f"{text}. {hint}" if hint else text)
        self.kind = kind
        self.context = context
        self.hint = hint
