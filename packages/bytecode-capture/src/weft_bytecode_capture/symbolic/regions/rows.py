"""Lists that a rolled loop appends to: its iterations fill the rows of one buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.sequences import ListVariable
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


class AppendingListVariable(ListVariable):
    """What a list is while a loop's body is evaluated: appending is noted, any look at it too."""

    looked_at: bool
    added: list[Variable]

    @property
    def is_its_parts(self) -> bool:
        return self.is_read and self.owner is None and not self.added

    def items(self, evaluator: Evaluator) -> list[Variable]:
        self.looked_at = True
        return super().items(evaluator)

    def get_item(self, evaluator: Evaluator, key: Variable) -> Variable:
        self.looked_at = True
        return super().get_item(evaluator, key)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        self.looked_at = True
        return super().iterate(evaluator)

    def length(self, evaluator: Evaluator) -> int:
        self.looked_at = True
        return super().length(evaluator)

    def snapshot(self) -> Any:
        self.looked_at = True
        return super().snapshot()

    def append(self, evaluator: Evaluator, item: Variable) -> None:
        self.added.append(item)


class AppendedLists:
    """The lists made in the frame that locals and comprehensions hold, watched while a body is evaluated."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._lists: list[AppendingListVariable] = []
        frame: Evaluator | None = evaluator
        while frame is not None:
            for variable in (*frame.locals.values(), *frame.stack):
                if type(variable) is ListVariable and variable.source is None:
                    variable.__class__ = AppendingListVariable
                    assert isinstance(variable, AppendingListVariable)
                    variable.looked_at, variable.added = False, []
                    self._lists.append(variable)
            frame = frame.parent

    def release(self) -> list[tuple[ListVariable, list[Variable], bool]]:
        """Make them plain lists again: those appended to, what was added, whether one was looked at."""
        found: list[tuple[ListVariable, list[Variable], bool]] = []
        for watched in self._lists:
            added, looked_at = watched.added, watched.looked_at
            del watched.added, watched.looked_at
            plain: Any = watched
            plain.__class__ = ListVariable
            if added:
                found.append((plain, added, looked_at))
        self._lists = []
        return found


class RowVariable(TensorVariable):
    """A row of a buffer that a rolled loop has filled: a view, made when something uses it."""

    is_regional = True

    def __init__(
        self, evaluator: Evaluator, buffer: TensorVariable, position: int, loop: torch.fx.Node
    ) -> None:
        self.source = None
        self.attributes = {}
        self.buffer = buffer
        self.position = position
        self._loop = loop
        self._mode = evaluator.graph.fake_mode
        self._made: tuple[torch.fx.Node, torch.Tensor] | None = None

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]
        return self._view()[0]

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]
        return self._view()[1]

    def _view(self) -> tuple[torch.fx.Node, torch.Tensor]:
        if self._made is None:
            with self._mode:
                fake = torch.select(self.buffer.fake, 0, self.position)
            # Where the loop ends, whichever region's graph is being made now.
            with self._loop.graph.inserting_after(self._loop):
                node = self._loop.graph.call_function(
                    torch.select, (self.buffer.node, 0, self.position)
                )
            node.meta.update(self._loop.meta)
            node.meta["example_value"] = fake
            self._made = node, fake
        return self._made


class RowsVariable(ListVariable):
    """A list of all rows of a buffer, of which there is another number in each call.

    What needs its elements gets those of this number alone.
    """

    buffer: TensorVariable
    make: Callable[[], list[Variable]]

    @property
    def _items(self) -> list[Variable]:
        made = self.make()
        plain: Any = self
        plain.__class__ = ListVariable
        del plain.buffer, plain.make
        plain._items = made
        return made

    @_items.setter
    def _items(self, items: list[Variable]) -> None:
        raise AssertionError("the list has no elements of its own")


def become_rows(
    target: ListVariable,
    evaluator: Evaluator,
    buffer: TensorVariable,
    count: Variable,
    loop: torch.fx.Node,
) -> None:
    """Make an empty list the list of the ``count`` rows that ``loop`` has written to ``buffer``."""

    def make() -> list[Variable]:
        number: int = count.as_constant()
        return [RowVariable(evaluator, buffer, position, loop) for position in range(number)]

    del target._items
    changed: Any = target
    changed.__class__ = RowsVariable
    changed.buffer, changed.make = buffer, make


def join_rows(
    evaluator: Evaluator,
    function: Callable[..., Any],
    arguments: Sequence[Variable],
    keywords: dict[str, Variable],
) -> Variable | None:
    """``torch.stack`` or ``torch.cat`` of all rows of one buffer, in order; None for any other call."""
    if function not in (torch.stack, torch.cat) or not arguments or len(arguments) > 2:
        return None
    named = {**keywords, **dict(zip(("dim",), arguments[1:], strict=False))}
    dimension = named.pop("dim", ConstantVariable(0))
    buffer = _joined_buffer(arguments[0])
    if named or buffer is None or not dimension.is_constant():
        return None
    if function is torch.cat:
        if dimension.as_constant() != 0 or buffer.fake.dim() < 2:
            return None
        flat = [ConstantVariable(0), ConstantVariable(1)]
        joined = evaluator.graph.call_method(evaluator, "flatten", buffer, flat, {})
        return evaluator.graph.call_method(evaluator, "clone", joined, (), {})
    moved = evaluator.graph.call_function(
        evaluator, torch.movedim, [buffer, ConstantVariable(0), dimension], {}
    )
    layout: dict[str, Variable] = {"memory_format": ConstantVariable(torch.contiguous_format)}
    return evaluator.graph.call_method(evaluator, "clone", moved, (), layout)


def _joined_buffer(sequence: Variable) -> TensorVariable | None:
    """The buffer of which a sequence has all rows in order."""
    if isinstance(sequence, RowsVariable):
        return sequence.buffer
    rows = getattr(sequence, "_items", None)
    if not rows or not _are_all_rows(rows):
        return None
    found: TensorVariable = rows[0].buffer
    return found


def _are_all_rows(rows: Sequence[Variable]) -> bool:
    first = rows[0]
    if not isinstance(first, RowVariable) or first.buffer.fake.size(0) != len(rows):
        return False
    return all(
        isinstance(row, RowVariable) and row.buffer is first.buffer and row.position == position
        for position, row in enumerate(rows)
    )
