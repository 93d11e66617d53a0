"""What the compilations of one code object have seen: sizes and numbers that changed become symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft_guards import Source


class ShapeHistory:
    """Sizes, strides and numbers by source, over all compilations of one code object.

    What differs from an earlier compilation is *changed* from then on.
    """

    def __init__(self) -> None:
        self._extents: dict[tuple[Source, str], list[int | None]] = {}  # None: changed
        self._numbers: dict[tuple[Source, type], Any] = {}
        self._changed_numbers: set[tuple[Source, type]] = set()

    def changed_extents(self, source: Source, what: str, extents: Sequence[int]) -> frozenset[int]:
        """Note a tensor's sizes or strides (``what``); gives the dimensions in which they have changed.

        Another number of dimensions begins anew.
        """
        known = self._extents.get((source, what))
        if known is None or len(known) != len(extents):
            self._extents[source, what] = list(extents)
            return frozenset()
        for dimension, extent in enumerate(extents):
            if known[dimension] != extent:
                known[dimension] = None
        return frozenset(d for d, extent in enumerate(known) if extent is None)

    def number_changed(self, source: Source, number: int | float) -> bool:
        """Note an int or float; whether another of its type was seen before."""
        key = (source, type(number))
        known = self._numbers.setdefault(key, number)
        if known != number and (known == known or number == number):  # NaN is NaN
            self._changed_numbers.add(key)
        return key in self._changed_numbers
