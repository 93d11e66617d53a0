"""Places in objects whose values a region may replace: elements, attributes, the cells of closures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ....unsupported import Unsupported
from ...models.containers.mappings import DictVariable
from ...models.containers.sequences import ListVariable, SequenceVariable
from ...models.functions.cells import CellVariable
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable
from ...models.numbers.tensor_number import TensorNumberVariable, number_in_tensor, number_kind
from ...models.objects.user_objects import UserObjectVariable
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..decisions import refuse
from ..filled_lists.rows import AllRows, RowVariable
from ..loops.carried import CarriedLocals
from ..subgraph import Carried, give_gradients
from .python_state import difference, same_constant

_MAX_ELEMENTS = 64  # of a container whose places are told apart

Owner = ListVariable | DictVariable | CellVariable | UserObjectVariable


@dataclass(frozen=True, eq=False)
class Slot:
    """A place in a list, a dict, an instance (its attribute ``key``) or a cell."""

    owner: Owner
    key: Any

    def get(self) -> Variable | None:
        """What is there; None if the place is gone, or a cell empty."""
        owner, key = self.owner, self.key
        if isinstance(owner, CellVariable):
            return owner.contents
        if isinstance(owner, UserObjectVariable):
            return owner.attributes.get(key)
        if isinstance(owner, DictVariable):
            return owner.entries.get(key)
        return owner._items[key] if key < len(owner._items) else None

    def set(self, value: Variable | None) -> None:
        """Put ``value`` there.

        :raises Unsupported: the place is gone, of a list that the region has made shorter.
        """
        owner, key = self.owner, self.key
        if isinstance(owner, CellVariable):
            owner.contents = value
            return
        assert value is not None
        if isinstance(owner, UserObjectVariable):
            owner.attributes[key] = value
        elif isinstance(owner, DictVariable):
            owner.entries[key] = value
        elif key < len(owner._items):
            owner._items[key] = value
        else:
            raise Unsupported("object that a region changes", repr(owner))


def find_slots(evaluator: Frame) -> list[Slot]:
    """The places of tensors and numbers in what the frame can reach, and its cells.

    Objects from outside the frame count once they have been changed: the journal brings them to their last
    state.
    """
    _read_cells(evaluator)
    mutated = {id(variable) for variable in evaluator.side_effects.mutated_variables()}
    return [
        slot
        for owner in _owners(evaluator, mutated)
        for slot in _places(owner)
        if isinstance(owner, CellVariable) or _is_carried(slot.get())
    ]


def _read_cells(evaluator: Frame) -> None:
    """Find out what cells from outside hold: one that was not read yet looks like an empty one."""
    for cell in evaluator.cells.values():
        if isinstance(cell, CellVariable) and not cell.is_empty_outside():
            cell.read(evaluator)


def _is_carried(value: Variable | None) -> bool:
    return value is not None and (
        isinstance(value, TensorVariable) or number_kind(value) is not None
    )


def _owners(evaluator: Frame, mutated: set[int]) -> Iterator[Owner]:
    pending: list[Variable] = [*evaluator.locals.values(), *evaluator.cells.values()]
    seen: set[int] = set()
    while pending:
        variable = pending.pop()
        own = variable.source is None or id(variable) in mutated
        if id(variable) in seen or not own:
            continue
        seen.add(id(variable))
        inner = _contents(variable)
        if len(inner) > _MAX_ELEMENTS or any(isinstance(item, RowVariable) for item in inner):
            continue
        has_form = getattr(variable, "form", None) is not None
        if (type(variable) in _CONTAINERS and not has_form) or isinstance(variable, _OBJECTS):
            yield variable  # type: ignore[misc]
        pending += inner


_CONTAINERS = (DictVariable, ListVariable)
_OBJECTS = (CellVariable, UserObjectVariable)


def _contents(variable: Variable) -> list[Variable]:
    if isinstance(variable, CellVariable):
        return [variable.contents] if variable.contents is not None else []
    if isinstance(variable, UserObjectVariable):
        return [value for value in variable.attributes.values() if value is not None]
    if type(variable) is DictVariable and variable.unread is None:
        return list(variable.entries.values())
    if isinstance(getattr(variable, "form", None), AllRows):
        return []
    if isinstance(variable, SequenceVariable) and variable.is_read:
        return list(variable._items)
    return []


def _places(owner: Owner) -> list[Slot]:
    if isinstance(owner, CellVariable):
        return [Slot(owner, "variable")]
    if isinstance(owner, UserObjectVariable):
        return [Slot(owner, name) for name in owner.attributes]
    if isinstance(owner, DictVariable):
        return [Slot(owner, key) for key in owner.entries]
    return [Slot(owner, key) for key in range(len(owner._items))]


def _may_carry(slot: Slot, tensor: TensorVariable) -> bool:
    """Whether a loop may carry what is there: with gradients in a cell alone, which is a local too."""
    return isinstance(slot.owner, CellVariable) or not tensor.fake.requires_grad


@dataclass
class _CarriedSlot:
    """A place in a loop: what it holds before, what stands for that in the body, and the results."""

    slot: Slot
    name: str
    start: Variable | None
    parameter: Variable | None
    carried: Carried | None
    result: Variable | None = None  # what the place holds after the loop, if the body replaces it
    bound: Variable | None = None  # what the body has left in an empty cell


class CarriedSlots:
    """The places whose values a loop's body may replace: each is carried as a local is.

    ``first_bound`` gives what a tensor starts with that the loop binds first, in a cell.
    """

    def __init__(
        self,
        evaluator: Frame,
        carried: CarriedLocals,
        first_bound: Callable[[TensorVariable], TensorVariable],
    ) -> None:
        self._evaluator = evaluator
        self._carried = carried
        self._first_bound = first_bound
        slots = [s for s in find_slots(evaluator) if id(s.owner) not in carried.opened]
        self._slots = [self._begin(n, slot) for n, slot in enumerate(slots)]

    def _begin(self, number: int, slot: Slot) -> _CarriedSlot:
        evaluator, carried = self._evaluator, self._carried
        name = f"place {number} ({slot.key})"
        start = slot.get()
        if start is not None and evaluator.state.cache.regions.is_counted(carried.place, name):
            start = number_in_tensor(evaluator, start) or start
        tensor = start.tensor if isinstance(start, TensorNumberVariable) else start
        if not isinstance(tensor, TensorVariable) or not _may_carry(slot, tensor):
            slot.set(start)
            return _CarriedSlot(slot, name, start, start, None)
        taken = carried.add("element", tensor, None)
        parameter: Variable = taken.parameter
        if isinstance(start, TensorNumberVariable):
            parameter = TensorNumberVariable(taken.parameter, start.kind)
        slot.set(parameter)
        return _CarriedSlot(slot, name, start, parameter, taken)

    def end_iteration(self) -> None:
        """Note what the body has left, whose graph is at hand; what is unlike before stays a change."""
        for place in self._slots:
            left = place.slot.get()
            if left is not None and left is not place.parameter:
                self._end_iteration(place, left)

    def _end_iteration(self, place: _CarriedSlot, left: Variable) -> None:
        if isinstance(left, TensorVariable) and left.element is not None:
            raise Unsupported("element at a position that data gives, in a container", repr(left))
        if place.start is None:
            place.bound = self._bound(left)
        elif isinstance(place.start, TensorNumberVariable):
            place.result = self._number(place, left)
        elif number_kind(place.start) is not None:
            if number_kind(left) is number_kind(place.start) and not same_constant(
                place.start, left
            ):
                reason = f"{place.name} is {place.start!r}, then {left!r}"
                raise refuse(self._evaluator, self._carried.place, reason, counted=place.name)
        elif isinstance(left, TensorVariable) and _may_carry(place.slot, left):
            self._carry(place, left)
        if place.result is not None or place.bound is not None:
            place.slot.set(place.parameter)

    def _carry(self, place: _CarriedSlot, left: TensorVariable) -> None:
        """Note the tensor that the body has left in a place that held one like it."""
        carried = place.carried
        if carried is None or difference(carried.start, left) is not None:
            return
        self._carried.check_strides(place.name, carried.start, left)
        if left.fake.requires_grad and not carried.parameter.fake.requires_grad:
            give_gradients(self._evaluator, carried.parameter.fake)
        carried.result = left
        place.result = carried.parameter

    def _bound(self, left: Variable) -> Variable | None:
        """What the body has left in an empty cell, if a loop can carry it."""
        value: Variable | None = left
        if isinstance(left, SymbolicIntegerVariable):
            value = number_in_tensor(self._evaluator, left)
        if isinstance(value, (TensorVariable, TensorNumberVariable)):
            return value
        return left if left.is_constant() else None

    def bind(self) -> None:
        """Let cells that were empty have the loop's results, in the graph around it."""
        for place in self._slots:
            value = place.bound
            if isinstance(value, TensorNumberVariable):
                taken = self._first(value.tensor)
                place.result = value.held_in(taken)
            elif isinstance(value, TensorVariable):
                place.result = self._first(value)
            elif value is not None:
                place.result = value

    def _first(self, value: TensorVariable) -> TensorVariable:
        parameter = self._carried.add("variable", self._first_bound(value), value).parameter
        if value.fake.requires_grad:
            give_gradients(self._evaluator, parameter.fake)
        return parameter

    def _number(self, place: _CarriedSlot, left: Variable) -> Variable | None:
        number = number_in_tensor(self._evaluator, left)
        start, carried = place.start, place.carried
        assert isinstance(start, TensorNumberVariable)
        assert carried is not None
        if number is None or number.kind is not start.kind:
            return None
        if number.kind is int and not number.is_step:
            raise Unsupported("integer that may grow beyond a tensor's", repr(left))
        carried.result = number.tensor
        return place.parameter

    def finish(self) -> None:
        """Put the loop's results into their places, and what has not changed."""
        for place in self._slots:
            place.slot.set(place.start if place.result is None else place.result)
