"""The one exception by which the symbolic evaluator says that it does not handle something."""

from __future__ import annotations

from .break_kinds import BREAK_KINDS
from .break_kinds import OPERATOR_REJECTS as OPERATOR_REJECTS
from .user_location import UserLocation


class Unsupported(Exception):
    """The evaluator cannot go on soundly; becomes a graph break, or an error under ``fullgraph=True``.

    ``kind`` names the entry in the catalogue of breaks (a short constant phrase), ``context`` the values
    at hand, ``explanation`` why it is not captured, ``hints`` what a user can do; those two are the
    catalogue's where the place that raises knows nothing better.  ``location`` is the user's line, where it
    is another than that of the break: in a region that is not kept.
    """

    location: UserLocation | None = None

    def __init__(
        self, kind: str, context: str = "", explanation: str = "", hints: tuple[str, ...] = ()
    ) -> None:
        super().__init__(kind)
        entry = BREAK_KINDS.get(kind)
        self.kind = kind
        self.context = context
        self.explanation = explanation or (entry.explanation if entry is not None else "")
        self.hints = hints or (entry.hints if entry is not None else ())

    def __str__(self) -> str:
        lines = [self.kind]
        if self.context:
            lines.append(f"  context: {self.context}")
        if self.explanation:
            lines.append(f"  explanation: {self.explanation}")
        lines.extend(f"  hint: {hint}" for hint in self.hints)
        return "\n".join(lines)


class BreakEarlier(Unsupported):
    """The graph must end before the place that could not be captured: at the instruction ``position``.

    For one, where an object was made that CPython alone can keep.
    """

    def __init__(self, position: int, error: Unsupported) -> None:
        super().__init__(error.kind, error.context, error.explanation, error.hints)
        self.position = position


class EntersHooks(Unsupported):
    """From here on the program is given each tensor that autograd saves: eager has to do the saving."""


class BreakForHistory(BreakEarlier):
    """The operation at ``position`` has to give its tensor a place of its own in autograd's graph."""
