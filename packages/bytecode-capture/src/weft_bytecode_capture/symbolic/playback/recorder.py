"""Taking down what evaluation reads, while a call is evaluated that may be played back later.

All that evaluation relies on of objects from outside goes by a variable made of one or by a guard: those are
the events.  What it relies on besides is the call's arguments, and what :mod:`.surroundings` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft_guards import Predicate, Reason, Source

from ..variables.base import Variable
from .events import Event, Guarded, Identified, IdentifiedAt, Wrapped


class Recorder:
    """The events of one capture, taken down while some call is recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.open = 0  # calls that are recorded, one in another
        self.refusals = 0  # how often something was met that no call that is recorded may do
        self.reason: Reason | None = None  # of the guards that are played back
        self._wrapping = 0

    def refuse(self) -> None:
        """What is evaluated now is to be evaluated anew in each call."""
        self.refusals += 1

    def guarded(self, source: Source, predicate: Predicate, reason: Reason) -> None:
        """A guard was asked for."""
        self.events.append(Guarded(source, predicate, self._wrapping > 0, True, reason))

    def relied_on(self, source: Source, predicate: Predicate, reason: Reason) -> None:
        """A fact was relied on that another guard already holds for this very object."""
        if self.open:
            self.events.append(Guarded(source, predicate, self._wrapping > 0, False, reason))

    def identified_at(self, source: Source) -> None:
        """What follows depends on whether it is fixed which object is at ``source``."""
        if self.open:
            self.events.append(IdentifiedAt(source))

    def identified(self, value: Any) -> None:
        """What follows depends on which object ``value`` is."""
        if self.open:
            self.events.append(Identified(value))

    @contextmanager
    def wrapping(
        self, value: Any, source: Source, was_known: bool, reason: Reason
    ) -> Iterator[list[Variable]]:
        """A variable is made of an object, or found; the caller puts it into the list."""
        event = Wrapped(source, value, was_known, self._wrapping > 0, reason)
        self.events.append(event)
        self._wrapping += 1
        made: list[Variable] = []
        try:
            yield made
        finally:
            self._wrapping -= 1
        event.variable = made[0]
