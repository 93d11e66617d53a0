"""What is known, from earlier evaluations of a frame, about the regions in it."""

from __future__ import annotations

import logging
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...captured_graph import UnkeptRegion
from ...user_location import UserLocation
from ..decode import DecodedCode
from .branches.copied_tests import join_copied_tests

_LOG = logging.getLogger("weft_bytecode_capture.regions")

_MAX_RAISING = 4  # places of a loop, for each of which its frame is evaluated once more

_MAX_VARYING = 16  # attempts at finding the sizes that vary in a loop

ProgramPoint = tuple[types.CodeType, int]
"""A code object and the index of the instruction that a region starts at."""

Dim = tuple[str, int, int]
"""A dim that a loop carries: of the local's tensor with this number, and which."""


@dataclass(frozen=True)
class VaryingSize:
    """A size that differs by iteration; sizes of one ``number`` are equal.

    ``grows``: no iteration leaves less than the least that the loop may begin with.
    """

    number: int
    grows: bool = False


def note_dropped(location: str, reason: str) -> None:
    """Log that a backend does not take the regions of the frame at ``location``."""
    _LOG.info("%s: no regions are kept: %s", location, reason)


@dataclass(eq=False)
class RegionRefused(Exception):
    """A region cannot be kept: the frame is evaluated again without it.

    ``peel``: the first iteration differs from the others; a loop may be tried again from the second on.
    ``counted``: a local that the loop counts; it may be tried again with the number in a tensor.
    ``remade``: a local for which the loop makes new containers; it may be tried again with what they hold.
    ``returned``: a result that may be the caller's tensor; it may be tried again with tags.
    ``raising``: a place of a loop over places at which the body raises; the loop may be tried again with a
    check that this is none of the places.
    ``short``: it is a loop that would be unrolled for being short, and is to be kept.
    ``varying``: the dims of a loop whose sizes vary; it may be tried again so.
    ``unassumed``: the loop's test need not hold in its body; it may be tried again without relying on it.
    ``cause``: the line in the region that cannot be kept.
    """

    place: ProgramPoint
    line: int
    reason: str
    peel: bool = False
    counted: str | None = None
    returned: bool = False
    remade: str | None = None
    cause: UserLocation | None = None
    raising: int | None = None
    short: bool = False
    varying: Mapping[Dim, VaryingSize] | None = None
    unassumed: bool = False


class _Decoded(Protocol):
    @property
    def decoded(self) -> DecodedCode: ...


def refuse(
    evaluator: _Decoded,
    place: ProgramPoint,
    reason: str,
    peel: bool = False,
    counted: str | None = None,
    remade: str | None = None,
    cause: UserLocation | None = None,
    raising: int | None = None,
    varying: Mapping[Dim, VaryingSize] | None = None,
    unassumed: bool = False,
) -> RegionRefused:
    """What to raise to have the frame evaluated without the region at ``place``, or with another."""
    return RegionRefused(
        place,
        evaluator.decoded.line(place[1]),
        reason,
        peel,
        counted,
        remade=remade,
        cause=cause,
        raising=raising,
        varying=varying,
        unassumed=unassumed,
    )


def refuse_by(
    cache: DecodeCache, place: ProgramPoint, reason: str, *, returned: bool = False
) -> RegionRefused:
    """The same from anywhere in the frame, whose code is in ``cache``."""
    line = cache.decode(place[0]).line(place[1])
    return RegionRefused(place, line, reason, returned=returned)


class RegionDecisions:
    """Refused regions with their reasons, loops whose first iteration is left out, what loops count.

    ``tags_wanted``: regions say which of the caller's tensors their results are; ``made_tags_wanted``: which
    of those that the frame makes, too.
    """

    def __init__(self) -> None:
        self.tags_wanted = self.made_tags_wanted = False
        self.unkept: list[UnkeptRegion] = []
        self._refused: dict[ProgramPoint, UnkeptRegion] = {}
        self._unrolled: set[ProgramPoint] = set()
        self._peeled: set[ProgramPoint] = set()
        self._counted: set[tuple[ProgramPoint, str]] = set()
        self._remade: set[tuple[ProgramPoint, str]] = set()
        self._raising: dict[ProgramPoint, set[int]] = {}
        self._short: set[ProgramPoint] = set()
        self._varying: dict[ProgramPoint, list[Mapping[Dim, VaryingSize]]] = {}  # of each attempt
        self._unassumed: set[ProgramPoint] = set()
        # Of loops kept from within an iteration: the head, and the test that comes first.
        self._heads: dict[ProgramPoint, tuple[ProgramPoint, ProgramPoint]] = {}
        self._whole: set[ProgramPoint] = set()

    def refuse(self, refusal: RegionRefused) -> None:
        place = refusal.place
        if refusal.counted is not None and (place, refusal.counted) not in self._counted:
            self._counted.add((place, refusal.counted))
            return
        if refusal.remade is not None and (place, refusal.remade) not in self._remade:
            self._remade.add((place, refusal.remade))
            return
        if refusal.raising is not None:
            raising = self._raising.setdefault(place, set())
            if refusal.raising not in raising and len(raising) < _MAX_RAISING:
                raising.add(refusal.raising)
                return
        if refusal.short:
            self._short.add(place)
            return
        if refusal.varying is not None:
            attempts = self._varying.setdefault(place, [])
            if len(attempts) < _MAX_VARYING:
                attempts.append(refusal.varying)
                return
        if refusal.unassumed and place not in self._unassumed:
            self._unassumed.add(place)
            return
        loop = self._heads.get(place)
        if loop is not None and loop[0] not in self._whole:
            head, test = loop
            self._whole.add(head)
            # What was refused there is a branch in the iterations that began within one.
            if (report := self._refused.pop(test, None)) is not None:
                self.unkept.remove(report)
            return
        if refusal.peel and place not in self._peeled:
            self._peeled.add(place)
            return
        if refusal.returned:
            if not self.made_tags_wanted:
                self.tags_wanted, self.made_tags_wanted = True, self.tags_wanted
                return
            self.tags_wanted = self.made_tags_wanted = False  # which others may not need
        self._refused[place] = self._report(place, refusal.line, refusal.reason, refusal.cause)

    def note_unrolled(self, place: ProgramPoint, line: int, reason: str) -> None:
        """Report a loop for which no region was tried, once."""
        if place not in self._refused and place not in self._unrolled:
            self._unrolled.add(place)
            self._report(place, line, reason)

    def _report(
        self, place: ProgramPoint, line: int, reason: str, cause: UserLocation | None = None
    ) -> UnkeptRegion:
        code = place[0]
        location = UserLocation(code.co_filename, line, code.co_qualname)
        self.unkept.append(UnkeptRegion(location, reason, cause))
        _LOG.info("%s:%d: not kept as a region: %s", code.co_filename, line, reason)
        return self.unkept[-1]

    def refused(self, place: ProgramPoint) -> UnkeptRegion | None:
        """Why the region at ``place`` was refused; None if it was not."""
        return self._refused.get(place)

    def is_counted(self, place: ProgramPoint, name: str) -> bool:
        """Whether the loop at ``place`` holds its local ``name``, an integer, in a tensor."""
        return (place, name) in self._counted

    def is_remade(self, place: ProgramPoint, name: str) -> bool:
        """Whether the loop at ``place`` carries what the container in its local ``name`` holds."""
        return (place, name) in self._remade

    def raises_at(self, place: ProgramPoint, number: int) -> bool:
        """Whether the body of the loop over places at ``place`` raises at the place ``number``."""
        return number in self._raising.get(place, ())

    def is_kept_short(self, place: ProgramPoint) -> bool:
        """Whether the loop at ``place`` is kept though it is short: data decides when it ends."""
        return place in self._short

    def varying(self, place: ProgramPoint) -> Mapping[Dim, VaryingSize] | None:
        """The dims whose sizes vary in the loop at ``place``.

        None where nothing has been found out yet.
        """
        attempts = self._varying.get(place)
        return attempts[-1] if attempts else None

    def may_assume(self, place: ProgramPoint) -> bool:
        """Whether the body of the loop at ``place`` relies on the loop's test."""
        return place not in self._unassumed

    def note_within(self, place: ProgramPoint, head: ProgramPoint, test: ProgramPoint) -> None:
        """A loop with this head is tried from within an iteration, at ``place``; else from ``test`` on."""
        self._heads[place] = head, test

    @property
    def keep_whole_loops(self) -> bool:
        """Whether there are any such loops."""
        return bool(self._whole)

    def is_kept_whole(self, head: ProgramPoint) -> bool:
        """Whether a loop is kept from its own test on, though that is no test of data the first time."""
        return head in self._whole

    def first_iteration(self, place: ProgramPoint) -> int:
        """How many iterations of a loop to unroll before the others are kept as a loop."""
        return int(place in self._peeled)


class DecodeCache:
    """Decoded code objects and decisions about regions, shared by the restarts of one capture."""

    def __init__(self) -> None:
        self.regions = RegionDecisions()
        self._by_id: dict[int, DecodedCode] = {}

    def decode(self, code: types.CodeType) -> DecodedCode:
        decoded = self._by_id.get(id(code))
        if decoded is None:
            decoded = self._by_id[id(code)] = DecodedCode(code)
            join_copied_tests(decoded)
        return decoded
