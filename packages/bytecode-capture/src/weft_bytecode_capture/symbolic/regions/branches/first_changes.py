"""Slots of the caller's objects that one branch of a conditional is the first to write: joined as others are.

Before its first write an object from outside is known by what was read of it.  What a branch has written is
noted, and taken back to that; where only the other branch writes, the place keeps what the object has.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from weft_guards import ItemSource

from ....unsupported import Unsupported
from ...models.containers.mappings import DictVariable
from ...models.containers.sequences import ListVariable
from ...models.objects.user_objects import UserObjectVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..state.containers import made_by_one_branch
from ..state.python_state import ObjectStates, same_constant
from ..state.slots import Slot

_Owner = ListVariable | DictVariable | UserObjectVariable


@dataclass(frozen=True, eq=False)
class _WrittenSlot(Slot):
    """A place whose new value the code after the graph writes to the object."""

    def set(self, value: Variable | None) -> None:
        owner = self.owner
        if isinstance(owner, ListVariable) and self.key == len(owner._items):
            assert value is not None
            owner._items.append(value)
            return
        super().set(value)
        if isinstance(owner, DictVariable):
            owner.written.add(self.key)


@dataclass(frozen=True, eq=False)
class _AppendedSlot(Slot):
    """A place among what is appended to a list of which nothing else is known."""

    def get(self) -> Variable | None:
        assert isinstance(self.owner, ListVariable)
        found: Variable = self.owner._appended[self.key]
        return found

    def set(self, value: Variable | None) -> None:
        assert isinstance(self.owner, ListVariable)
        assert value is not None
        assert self.key == len(self.owner._appended)
        self.owner._appended.append(value)


class FirstChanges:
    """What branches are the first to write to objects from outside, by branch and slot."""

    def __init__(self, evaluator: Frame, states: ObjectStates) -> None:
        self._evaluator = evaluator
        self._states = states
        self._slots: dict[Hashable, Slot] = {}
        self._before: dict[Slot, Variable | None] = {}  # None for a place that was not there
        self._left: list[dict[Slot, Variable]] = []
        self._known = {id(owner): set(_written(owner)) for owner in self._owners()}

    def _owners(self) -> Iterator[_Owner]:
        """The objects from outside that have been changed."""
        for variable in self._evaluator.side_effects.mutated_variables():
            if type(variable) in (ListVariable, DictVariable) or isinstance(
                variable, UserObjectVariable
            ):
                yield variable  # type: ignore[misc]

    def take_back(self) -> None:
        """Note what a branch has written first, and put back what was there."""
        left: dict[Slot, Variable] = {}
        owners = list(self._owners())
        for owner in owners:
            for slot in self._new_places(owner):
                value = slot.get()
                if value is None:
                    raise Unsupported("object that a region changes", f"{owner!r} loses {slot.key}")
                left[slot] = value
            self._put_back(owner, [slot for slot in left if slot.owner is owner])
        self._left.append(left)
        self._states.note_taken_back(owners)

    def _new_places(self, owner: _Owner) -> list[Slot]:
        """The places that are written now, and were not before the conditional."""
        known = self._known.get(id(owner), set())
        if isinstance(owner, ListVariable) and owner.is_read and id(owner) not in self._known:
            known = self._unchanged_elements(owner)
        if isinstance(owner, DictVariable) and owner.deleted and id(owner) not in self._known:
            raise Unsupported("object that a region changes", f"{owner!r} loses a key")
        return [self._slot(owner, key) for key in _written(owner) if key not in known]

    def _unchanged_elements(self, owner: ListVariable) -> set[Any]:
        evaluator, values = self._evaluator, self._evaluator.builder.value_of(owner)
        if len(owner._items) < len(values):
            raise Unsupported("object that a region changes", f"{owner!r} loses an element")
        before = [
            evaluator.builder.wrap(value, ItemSource(_source(owner), index))
            for index, value in enumerate(values)
        ]
        pairs = zip(before, owner._items, strict=False)
        return {index for index, pair in enumerate(pairs) if same_constant(*pair)}

    def _slot(self, owner: _Owner, key: Any) -> Slot:
        is_unread_list = isinstance(owner, ListVariable) and not owner.is_read
        kind: type[Slot] = _AppendedSlot if is_unread_list else _WrittenSlot
        place = (id(owner), kind, key)
        if place not in self._slots:
            slot = self._slots[place] = kind(owner, key)
            self._before[slot] = _value_before(self._evaluator, slot)
        return self._slots[place]

    def _put_back(self, owner: _Owner, slots: list[Slot]) -> None:
        """Let a changed object be as it was when it was not known to change."""
        for slot in reversed(slots):
            before = self._before[slot]
            if isinstance(owner, UserObjectVariable):
                del owner.attributes[slot.key]
            elif isinstance(owner, DictVariable):
                owner.written.discard(slot.key)
                if before is None or owner.unread is not None:
                    del owner.entries[slot.key]
                else:
                    owner.entries[slot.key] = before
            elif not owner.is_read:
                owner._appended.pop()
            elif before is None:
                owner._items.pop()
            else:
                owner._items[slot.key] = before

    def joined(self) -> tuple[dict[Slot, Variable], dict[Slot, Variable]]:
        """What either branch leaves in all the places that one of them writes first."""
        first, second = self._left
        for one, other in ((first, second), (second, first)):
            for slot in [slot for slot in one if slot not in other]:
                before = self._before[slot]
                if before is None:
                    raise made_by_one_branch(slot.owner)
                other[slot] = before
        made = [[s for s in branch if self._before[s] is None] for branch in (first, second)]
        if made[0] != made[1]:
            raise Unsupported("object that a region changes", "in another order in either branch")
        return first, second


def _written(owner: _Owner) -> list[Any]:
    """The places of an object whose values the code after the graph would write."""
    if isinstance(owner, UserObjectVariable):
        return list(owner.attributes)
    if isinstance(owner, DictVariable):
        return [key for key in owner.entries if key in owner.written]
    return list(range(len(owner._items if owner.is_read else owner._appended)))


def _value_before(evaluator: Frame, slot: Slot) -> Variable | None:
    """What the real object has in a place; None if it has no such place."""
    owner, key = slot.owner, slot.key
    if isinstance(owner, UserObjectVariable):
        written = owner.attributes.pop(key)
        found = evaluator.state.find_in_type(owner.kind, key)
        if found is None or not isinstance(found[1], types.MemberDescriptorType):
            before = owner.instance_attribute(evaluator, key)
        else:
            is_filled = owner._slot_is_filled(evaluator, key)
            before = owner._slot(evaluator, key) if is_filled else None
        owner.attributes[key] = written
        return before
    if isinstance(owner, DictVariable):
        if key.python_key is None or owner.original is None:
            raise Unsupported("object that a region changes", f"{owner!r}, by a key {key!r}")
        (plain,) = key.python_key
        if plain not in owner.original:
            return None
        return evaluator.builder.wrap(owner.original[plain], ItemSource(_source(owner), plain))
    assert isinstance(owner, ListVariable)
    values = evaluator.builder.value_of(owner)
    if not owner.is_read or key >= len(values):
        return None
    return evaluator.builder.wrap(values[key], ItemSource(_source(owner), key))


def _source(owner: _Owner) -> Any:
    assert owner.source is not None
    return owner.source
