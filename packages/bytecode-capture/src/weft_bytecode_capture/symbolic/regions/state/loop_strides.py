"""Strides that a tensor has in some iterations only, of a loop that a tensor's value ends."""

from __future__ import annotations

from ..decisions import DecodeCache, ProgramPoint, refuse_by

_BY_STRIDES = frozenset(
    "stride is_contiguous dim_order as_strided as_strided_ as_strided_copy contiguous view view_as reshape "
    "reshape_as flatten ravel unflatten set_".split()
)
"""What asks for strides, or gives a view, a copy or an error, whichever the strides ask for."""


class LoopStrides:
    """The loops of a frame whose results have one layout after no iteration and another after some.

    Nobody need know which: the graph runs the operators on what there is.  ``asked`` counts what did ask.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._differing: list[ProgramPoint] = []

    def note(self, place: ProgramPoint) -> None:
        """The loop at ``place`` gives such a result."""
        self._differing.append(place)

    def before(self, cache: DecodeCache, name: str) -> None:
        """An operator or method of this name is called.

        :raises RegionRefused: it asks for strides, and a loop's result may be what it asks of.
        """
        if name not in _BY_STRIDES:
            return
        self.asked += 1
        if self._differing:
            reason = "strides are asked for that differ by iteration"
            raise refuse_by(cache, self._differing[-1], reason)
