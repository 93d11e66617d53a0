"""What the compilations of one code object have seen.

Sizes and numbers that changed become symbolic; tensors that changed are passed to the graph,
modules that changed are known by their structure.

Only what has changed: where one dimension changes in a later call than another, there are three
compilations, as with torch.compile.  Making all sizes of an input symbolic at its first change would
save the third, and have each model that sees many lengths pay for a batch size that stays;
``mark_dynamic`` is for that.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from weft_guards import ArgumentSource, ConstantSource, ItemSource, Source, is_constant, is_weak

from ...sources import SelectedSource

_MAX_CONTENTS = 3  # of a tensor, or lengths of a sequence, at one place that are compiled for


class ValueHistory:
    """Sizes, strides, numbers and objects by source, over all compilations of one code object.

    What differs from an earlier compilation is *changed* from then on, and from the beginning what is found
    at the arguments ``varying``, or in tuples that they are: a loop gives something else in each turn.
    But for sizes, which most loops leave as they are.
    """

    def __init__(self, varying: frozenset[str] = frozenset(), is_resumed: bool = False) -> None:
        self._varying = varying
        self.is_resumed = is_resumed  # whether the code goes on behind a break
        self._was_called = False  # without being compiled
        self.versions = 0  # compilations that gave an entry
        self.versions_without_tensors = 0
        self._extents: dict[tuple[Source, str], list[int | None]] = {}  # None: changed
        self._numbers: dict[tuple[Source, type], Any] = {}
        self._changed_numbers: set[tuple[Source, type]] = set()
        self._objects: dict[Source, weakref.ref[Any] | None] = {}  # None: changed
        self._any_changed = False  # of these
        self.refuted: set[Any] = set()  # places of decisions on data that fell otherwise later
        self._contents: dict[Source, set[object]] = {}

    def is_first_call(self, arguments: Mapping[str, Any]) -> bool:
        """Whether nothing was called or compiled before; notes sizes and numbers of ``arguments`` then."""
        if self._was_called or self.versions:
            return False
        self._was_called = True
        for name, value in arguments.items():
            self._note(ArgumentSource(name), value)
        return True

    def _note(self, source: Source, value: Any) -> None:
        if type(value) in (list, tuple):
            for index, item in enumerate(value):
                self._note(ItemSource(source, index), item)
        elif type(value) is dict:
            for key, item in value.items():
                self._note(ItemSource(source, key), item)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            self.changed_extents(source, "size", value.shape)
        elif type(value) in (int, float):
            self.number_changed(source, value)

    def changed_extents(self, source: Source, what: str, extents: Sequence[int]) -> frozenset[int]:
        """Note a tensor's sizes or strides (``what``); gives the dimensions in which they have changed.

        Another number of dimensions begins anew.
        """
        source = _place(source)
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
        key = (_place(source), type(number))
        if self._varies(source):
            self._changed_numbers.add(key)
        known = self._numbers.setdefault(key, number)
        if known != number and (known == known or number == number):  # NaN is NaN
            self._changed_numbers.add(key)
        return key in self._changed_numbers

    def note_varying_number(self, source: Source) -> None:
        """Say that the integer at ``source`` has been another before."""
        self._changed_numbers.add((_place(source), int))

    def contents_recur(self, source: Source, contents: tuple[Any, ...]) -> bool:
        """Note what a tensor holds; False where that differs in each call or iteration.

        That is known of what a loop gives, and from the fourth contents on.
        """
        return not self._varies(source) and self._recurs(source, contents)

    def length_recurs(self, source: Source, length: int) -> bool:
        """Note how many elements a sequence has; False from the fourth length on."""
        return self._recurs(source, length)

    def _recurs(self, source: Source, contents: object) -> bool:
        seen = self._contents.setdefault(_place(source), set())
        if len(seen) <= _MAX_CONTENTS:
            seen.add(contents)
        return len(seen) <= _MAX_CONTENTS

    def object_changed(self, source: Source, value: object) -> bool:
        """Note which tensor or module is found at ``source``; whether another was found there before."""
        source = _place(source)
        known = self._objects.setdefault(source, weakref.ref(value))
        if known is None or known() is not value or self._varies(source):
            self._objects[source] = None
            self._any_changed = True
            return True
        return False

    def is_of_a_varying_object(self, source: Source) -> bool:
        """Whether ``source`` is read from what a loop gives."""
        place: Source | None = source if self._varying else None
        while place is not None and not self._varies(place):
            place = getattr(place, "base", None)
        return place is not None

    def _varies(self, source: Source) -> bool:
        if not self._varying:
            return False
        while isinstance(source, (ItemSource, SelectedSource)):
            if isinstance(source, SelectedSource) and self._varies(source.index):
                return True
            source = source.base
        return isinstance(source, ArgumentSource) and source.argument in self._varying

    def is_of_a_changed_object(self, source: Source) -> bool:
        """Whether another object was found before at a place that ``source`` is read from."""
        if not self._any_changed:
            return False
        base = getattr(_place(source), "base", None)
        while base is not None:
            if base in self._objects and self._objects[base] is None:
                return True
            base = getattr(base, "base", None)
        return False


def _place(source: Source) -> Source:
    """The source without objects that it would hold, and with them what these hold.

    These are keys (parameters, in an optimizer's state) and what no variable leads to: a property of a class
    that was made for one module.  Where another object comes to a dead one's address, what is found for it
    has changed.
    """
    if not _holds_object(source):
        return source
    if isinstance(source, ConstantSource):
        return ItemSource(_HELD, source.held.address if source.is_weak else id(source.held))
    changed: Any = source  # a dataclass with this field
    place = _place(changed.base)
    if isinstance(source, ItemSource) and _is_object(source.key):
        address = source.key.address if is_weak(source.key) else id(source.key)
        return ItemSource(place, ("object", address))
    made: Source = replace(changed, base=place)
    return made


_HELD = ConstantSource("an object by its address", None)


def _is_object(key: Any) -> bool:
    return is_weak(key) or not is_constant(key)


def _holds_object(source: Source | None) -> bool:
    while source is not None:
        if type(source) is ItemSource and _is_object(source.key):
            return True
        if type(source) is ConstantSource and source is not _HELD:
            return True
        source = getattr(source, "base", None)
    return False
