"""``options={"guard_filter_fn": f}``: which guards later calls check, as the user decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft_guards import ArgumentSource, GlobalSource, Guard, Source


@dataclass(frozen=True)
class GuardEntry:
    """One guard of a compiled frame.

    ``name`` says where the value is read (``L['x']``), ``guard_type`` what is asked of it (the predicate's
    class), ``expected`` the same as text, ``is_global`` whether it is reached from a global name,
    ``is_argument`` from an argument; ``location`` is the line that made it needed.
    """

    name: str
    guard_type: str
    expected: str
    is_global: bool
    is_argument: bool
    location: str


GuardFilter = Callable[[list[GuardEntry]], Sequence[Any]]


def entry_of(guard: Guard) -> GuardEntry:
    root = root_of(guard.source)
    return GuardEntry(
        guard.source.name(),
        type(guard.predicate).__name__,
        guard.predicate.expected_text(),
        isinstance(root, GlobalSource),
        isinstance(root, ArgumentSource),
        f"{guard.reason.file}:{guard.reason.line}",
    )


def of_guards(keeps: GuardFilter | None) -> Callable[[Sequence[Guard]], Sequence[bool]] | None:
    """The user's filter as capture calls it."""
    if keeps is None:
        return None

    def kept(guards: Sequence[Guard]) -> Sequence[bool]:
        return [bool(keep) for keep in keeps([entry_of(guard) for guard in guards])]

    return kept


def root_of(source: Source) -> Source:
    """Where the path to a value begins."""
    while isinstance(base := getattr(source, "base", None), Source):
        source = base
    return source
