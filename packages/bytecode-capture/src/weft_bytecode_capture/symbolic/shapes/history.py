"""What the compilations of one code object have seen.

Sizes and numbers that changed become symbolic; tensors that changed are passed to the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from weft_guards import Source


class ValueHistory:
    """Sizes, strides, numbers and tensors by source, over all compilations of one code object.

    What differs from an earlier compilation is *changed* from then on.
    """

    def __init__(self) -> None:
        self._extents: dict[tuple[Source, str], list[int | None]] = {}  # None: changed
        self._numbers: dict[tuple[Source, type], Any] = {}
        self._changed_numbers: set[tuple[Source, type]] = set()
        self._tensors: dict[Source, weakref.ref[torch.Tensor] | None] = {}  # None: changed

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

    def tensor_changed(self, source: Source, tensor: torch.Tensor) -> bool:
        """Note which tensor is found at ``source``; whether another one was found there before."""
        known = self._tensors.setdefault(source, weakref.ref(tensor))
        if known is None or known() is not tensor:
            self._tensors[source] = None
            return True
        return False
