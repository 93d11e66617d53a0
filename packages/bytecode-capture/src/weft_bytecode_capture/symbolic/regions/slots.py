"""Lists and dicts made in the frame, whose tensors a region may replace by others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from ..variables.base import Variable
from ..variables.mappings import DictVariable
from ..variables.sequences import ListVariable, SequenceVariable
from ..variables.tensor import TensorVariable
from .positions import ElementVariable
from .rows import RowVariable
from .state import difference

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from .carried import Carried, CarriedLocals

_MAX_ELEMENTS = 64  # of a container whose tensors are told apart


@dataclass(frozen=True, eq=False)
class Slot:
    """A place in a list or a dict."""

    container: ListVariable | DictVariable
    key: Any

    def get(self) -> Variable | None:
        """What is there; None if the place is gone."""
        container, key = self.container, self.key
        if isinstance(container, DictVariable):
            return container.entries.get(key)
        assert isinstance(key, int)
        return container._items[key] if key < len(container._items) else None

    def set(self, value: Variable) -> None:
        if isinstance(self.container, DictVariable):
            self.container.entries[self.key] = value
        else:
            assert isinstance(self.key, int)
            self.container._items[self.key] = value


def tensor_slots(evaluator: Evaluator) -> list[Slot]:
    """The places of tensors in lists and dicts that locals reach."""
    return [
        slot
        for container in _containers(evaluator.locals.values())
        for slot in _places(container)
        if isinstance(slot.get(), TensorVariable)
    ]


def _containers(values: Iterable[Variable]) -> Iterator[ListVariable | DictVariable]:
    pending = list(values)
    seen: set[int] = set()
    while pending:
        variable = pending.pop()
        if id(variable) in seen or variable.source is not None:
            continue
        seen.add(id(variable))
        inner: list[Variable] = []
        if type(variable) is DictVariable and variable.unread is None:
            inner = list(variable.entries.values())
        elif isinstance(variable, SequenceVariable) and variable._unread is None:
            inner = list(variable._items)
        if len(inner) > _MAX_ELEMENTS or any(isinstance(item, RowVariable) for item in inner):
            continue
        if type(variable) is DictVariable or type(variable) is ListVariable:
            yield variable
        pending += inner


def _places(container: ListVariable | DictVariable) -> list[Slot]:
    if isinstance(container, DictVariable):
        return [Slot(container, key) for key in container.entries]
    return [Slot(container, key) for key in range(len(container._items))]


class CarriedSlots:
    """The places whose tensors a loop's body may replace: each is carried as a local is."""

    def __init__(self, evaluator: Evaluator, carried: CarriedLocals) -> None:
        self._carried: list[tuple[Slot, TensorVariable, Carried]] = []
        for slot in tensor_slots(evaluator):
            start = slot.get()
            if isinstance(start, TensorVariable) and not start.fake.requires_grad:
                taken = carried.add("element", start, None)
                self._carried.append((slot, start, taken))
                slot.set(taken.parameter)

    def settle(self) -> None:
        """Note what the body has left; what is like before is a result, anything else stays a change."""
        for slot, _, carried in self._carried:
            left = slot.get()
            if left is carried.parameter or not isinstance(left, TensorVariable):
                continue
            if isinstance(left, ElementVariable):
                raise Unsupported(
                    "element at a position that data gives, in a container", repr(left)
                )
            if difference(carried.start, left) is None and not left.fake.requires_grad:
                carried.result = left
                slot.set(carried.parameter)

    def finish(self) -> None:
        """Put the loop's results into their places, and what has not changed."""
        for slot, start, carried in self._carried:
            slot.set(start if carried.result is None else carried.parameter)
