"""What lists are that a rolled loop has appended to: rows of one buffer that its iterations have filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...._torch import storage_identity
from ...._torch.symbols import is_known_contiguous
from ....frame.emitter import Emitter
from ...models.containers.list_forms import ListForm, RepeatedTensor
from ...models.containers.sequences import ListVariable
from ...models.containers.slices import SliceVariable
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Evaluator, Frame
from ...variables.base import Keywords, Variable
from ...variables.constant import ConstantVariable
from ..branches.assumed_decisions import require
from ..decisions import ProgramPoint
from ..identity.aliases import storages_of
from .shared_rows import LeadingRows, SharedRows


class RowVariable(TensorVariable):
    """A row of a buffer that a rolled loop has filled: a view, made when something uses it."""

    is_regional = True

    def __init__(self, rows: LoopRows, position: int) -> None:
        self.source = None
        self.attributes = {}
        self.rows = rows
        self.position = position
        self._made: tuple[torch.fx.Node, torch.Tensor] | None = None

    @property
    def _node(self) -> torch.fx.Node:  # type: ignore[override]
        self.rows.note_use(is_view=True)
        return self._view()[0]

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]
        return self._view()[1]

    def _view(self) -> tuple[torch.fx.Node, torch.Tensor]:
        if self._made is None:
            buffer, loop = self.rows.buffer, self.rows.loop
            with self.rows.evaluator.graph.fake_mode:
                fake = torch.select(buffer.fake, 0, self.position)
            # Where the loop ends, whichever region's graph is being made now.
            with loop.graph.inserting_after(loop):
                node = loop.graph.call_function(torch.select, (buffer.node, 0, self.position))
            node.meta.update(loop.meta)
            node.meta["example_value"] = fake
            self._made = node, fake
        return self._made


class LoopRows:
    """The ``count`` rows of a buffer that ``loop`` has written, each one variable for all that see it.

    ``shared``: in eager others have them too.  The first are ``copies`` of ``leading``, what the list has
    held before the loop.  ``require_one`` relies on there being a row, where data decides that.
    """

    def __init__(
        self,
        evaluator: Frame,
        place: ProgramPoint,
        buffer: TensorVariable,
        count: Variable,
        loop: torch.fx.Node,
        shared: SharedRows | None,
        leading: Sequence[Variable] = (),
        copies: LeadingRows | None = None,
        require_one: Callable[[Frame], None] | None = None,
    ) -> None:
        self._require_one = require_one
        self.evaluator = evaluator
        self.place = place
        self.leading = leading
        self._copies = copies
        self.buffer = buffer
        self.count = count
        self.loop = loop
        self._shared = shared
        self._made: dict[int, RowVariable] = {}  # by position; -1 is the last
        self.are_numbers = False
        self.leaving: EveryRow | EveryNumber | None = (
            None  # all of them, where a list of them leaves the graph
        )

    def note_use(self, is_view: bool) -> None:
        """The rows are read; ``is_view``: by what may be read again later."""
        if self._shared is not None:
            self._shared.note_use(is_view)
        if self._copies is not None and not is_view:
            self._copies.note_read()

    def require_some(self, evaluator: Evaluator) -> None:
        """Rely on there being a row, which the graph checks.

        :raises Unsupported: there has been none before.
        """
        if self._require_one is not None:
            self._require_one(evaluator.frame)

    def every_separate(self) -> EveryRow | EveryNumber | None:
        """All of them as they leave the graph, however many; None of a known number."""
        if self.leaving is None and not self.count.is_constant():
            self.leaving = EveryNumber(self) if self.are_numbers else EveryRow(self)
        return self.leaving

    def row(self, position: int) -> Variable:
        """The row at a position, or the last one for -1."""
        if 0 <= position < len(self.leading):
            return self.leading[position]
        if position not in self._made:
            self._made[position] = RowVariable(self, position)
        return self._made[position]

    def led(self) -> range:
        """The positions of what the list has held before the loop."""
        return range(len(self.leading))

    def is_only(self, place: int) -> bool:
        """Whether the row at one end, 0 or -1, may be made though there may be one row alone."""
        other = 0 if place else -1
        return other not in self._made and not self.leading

    def every(self) -> list[Variable]:
        """All rows, of which there are this many from now on."""
        count: int = self.count.as_constant()
        last = self._made.pop(-1, None)
        if last is not None:
            last.position = count - 1
            self._made[count - 1] = last
        return [self.row(position) for position in range(count)]


@dataclass(frozen=True)
class AllRows(ListForm):
    """A list of all rows of a buffer, in order or the last one first: another number in each call.

    What needs all its elements gets those of this number alone.
    """

    hides_elements = True
    is_plain = True  # whether the rows are the elements
    rows: LoopRows
    is_reversed: bool = False

    def state(self) -> tuple[Any, ...]:
        return self.rows, self.is_reversed

    def look(self, target: ListVariable) -> None:
        target.form = None
        target._items = self.rows.every()[:: -1 if self.is_reversed else 1]

    def rebuild(self, emitter: Emitter) -> bool:
        every = self.rows.every_separate()
        if every is None:
            return False
        emitter.load_call(_listed, self.is_reversed, every, *self.rows.leading)
        return True

    def in_order(self, evaluator: Frame) -> TensorVariable:
        """A tensor of all rows in the order of the list, to be read."""
        self.rows.note_use(is_view=False)
        if not self.is_reversed:
            return self.rows.buffer
        return tensor_of(evaluator, "flip", self.rows.buffer, [0])

    def truth(self, evaluator: Evaluator) -> bool:
        self.rows.require_some(evaluator)
        return True

    def length(self) -> Variable:
        return self.rows.count

    def get_item(
        self, evaluator: Evaluator, target: ListVariable, key: Variable
    ) -> Variable | None:
        if isinstance(key, SliceVariable) and key.is_constant():
            whole = key.as_constant()
            if whole in (slice(None), slice(None, None, 1), slice(None, None, -1)):
                made = ListVariable()
                made.form = self.reversed() if whole.step == -1 else self
                return made
        elif key.is_constant() and not self.is_reversed and key.as_constant() in self.rows.led():
            return self.rows.row(key.as_constant())
        elif key.is_constant() and key.as_constant() in (0, -1):
            self.rows.require_some(evaluator)
            place = 0 if (key.as_constant() == 0) != self.is_reversed else -1
            if self.rows.is_only(place) or self._has_two(evaluator):
                return self.at_end(place)
        return None

    def at_end(self, place: int) -> Variable:
        """The element at one end, 0 or -1."""
        return self.rows.row(place)

    def _has_two(self, evaluator: Evaluator) -> bool:
        """Whether the first row is not the last one, guarded; False where data decides it."""
        compared = evaluator.binary_operation("ge", self.rows.count, ConstantVariable(2))
        return compared.is_constant() and bool(compared.as_constant())

    def reversed(self) -> AllRows:
        return AllRows(self.rows, not self.is_reversed)


def join_rows(
    evaluator: Frame,
    function: Callable[..., Any],
    arguments: Sequence[Variable],
    keywords: Keywords,
) -> Variable | None:
    """``torch.stack`` or ``torch.cat`` of all rows of one buffer, in order, or of one tensor many times.

    None for any other call.
    """
    if function not in (torch.stack, torch.cat) or not arguments or len(arguments) > 2:
        return None
    named = {**keywords, **dict(zip(("dim",), arguments[1:], strict=False))}
    where = named.pop("dim", ConstantVariable(0))
    if named or not where.is_constant() or type(where.as_constant()) is not int:
        return None
    buffer = _joined_buffer(evaluator, arguments[0])
    if buffer is None:
        return None
    form = getattr(arguments[0], "form", None)
    if isinstance(form, AllRows):
        form.rows.require_some(evaluator)
    if isinstance(form, RepeatedTensor):
        require(evaluator, "ge", form.count, 1)
    dimension: int = where.as_constant()
    rank = buffer.fake.dim() - (function is torch.cat)
    if not -rank <= dimension < rank:
        return None
    if not is_known_contiguous(buffer.fake):
        return None  # the result may have the layout of the rows
    dimension %= rank
    places: list[Variable] = [ConstantVariable(0), ConstantVariable(dimension)]
    joined = evaluator.graph.call_function(evaluator, torch.movedim, [buffer, *places], {})
    if function is torch.cat:
        places = [ConstantVariable(dimension), ConstantVariable(dimension + 1)]
        joined = evaluator.graph.call_method(evaluator, "flatten", joined, places, {})
    layout: dict[str, Variable] = {"memory_format": ConstantVariable(torch.contiguous_format)}
    return evaluator.graph.call_method(evaluator, "clone", joined, (), layout)


def _joined_buffer(evaluator: Frame, sequence: Variable) -> TensorVariable | None:
    """A tensor of all rows of one buffer that a sequence has, in its order."""
    form = getattr(sequence, "form", None)
    if isinstance(form, AllRows):
        return form.in_order(evaluator) if form.is_plain else None
    if isinstance(form, RepeatedTensor):
        row = tensor_of(evaluator, "unsqueeze", form.item, 0)
        return tensor_of(evaluator, "repeat", row, form.count, *[1] * (row.fake.dim() - 1))
    if isinstance(form, ListForm):
        joined: TensorVariable | None = form.joined()
        if joined is not None:
            return joined
    rows = getattr(sequence, "_items", None)
    if not rows or not isinstance(rows[-1], RowVariable):
        return None
    every: LoopRows = rows[-1].rows
    if every.buffer.fake.size(0) != len(rows):
        return None
    if any(row is not every.row(position) for position, row in enumerate(rows)):
        return None
    every.note_use(is_view=False)
    return every.buffer


# Rows of a buffer that leave the graph: the code after it gives each a storage of its own, as eager has.
#
# In the graph the tensors that a kept loop appends to a list are rows of one buffer.  A caller could tell:
# ``torch.save`` of one would write all, and one would keep the memory of all.


class LeavingBuffer(TensorVariable):
    """A buffer that leaves the graph for the code after it alone, which copies its rows."""

    is_regional = True

    def __init__(self, rows: LoopRows) -> None:
        super().__init__(rows.buffer.node, rows.buffer.fake, None)
        self.rows = rows


class EveryRow(Variable):
    """A tuple of copies of all rows of a buffer but those that the list has held before the loop."""

    def __init__(self, rows: LoopRows) -> None:
        self._buffer = LeavingBuffer(rows)
        self._first = len(rows.leading)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_rows_from, self._first, self._buffer)

    def index_of(self, row: RowVariable) -> int:
        return row.position - self._first if row.position >= 0 else row.position


class EveryNumber(Variable):
    """A list of the numbers in all rows of a buffer."""

    def __init__(self, rows: LoopRows) -> None:
        self._buffer = LeavingBuffer(rows)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(torch.Tensor.tolist, self._buffer)


class _SeparateRows(Variable):
    """A tuple of copies of some rows of a buffer, at ``positions``."""

    def __init__(self, rows: LoopRows, positions: list[int]) -> None:
        self._buffer = LeavingBuffer(rows)
        self._positions = positions

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(separate_rows, self._buffer, tuple(self._positions))


class _SeparateRow(Variable):
    """One of these copies, by its ``index`` among them."""

    kind = torch.Tensor

    def __init__(self, every: _SeparateRows | EveryRow, index: int) -> None:
        self._every = every
        self._index = index

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self._every)
        emitter.load_constant(self._index)
        emitter.load_subscript()


def separate_rows(buffer: torch.Tensor, positions: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Copies of the rows of ``buffer`` at ``positions``."""
    rows = buffer.unbind(0)
    return tuple([rows[position].clone() for position in positions])


def _rows_from(first: int, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([row.clone() for row in buffer.unbind(0)[first:]])


def _listed(
    is_reversed: bool, rows: Sequence[torch.Tensor], *leading: torch.Tensor
) -> list[torch.Tensor]:
    every = [*leading, *rows]
    return every[::-1] if is_reversed else every


def separate(outputs: Sequence[Variable]) -> ProgramPoint | None:
    """Let each row among ``outputs`` be a tensor of its own after the graph.

    Gives the loop of which another output shows a part of a row, which has to stay a part of it; None if
    there is none.
    """
    escaping: dict[int, list[RowVariable]] = {}
    buffers = {id(v.rows): v.rows for v in outputs if isinstance(v, LeavingBuffer)}
    for output in outputs:
        if isinstance(output, RowVariable):
            escaping.setdefault(id(output.rows), []).append(output)
            buffers[id(output.rows)] = output.rows
    others = (v for v in outputs if not isinstance(v, RowVariable | LeavingBuffer))
    shown = storages_of(others)
    for key, rows in buffers.items():
        if storage_identity(rows.buffer.fake) in shown:
            return rows.place
        found, every = escaping.get(key, []), rows.leaving
        if every is None or isinstance(every, EveryNumber):
            made = _SeparateRows(rows, [row.position for row in found])
            for index, row in enumerate(found):
                row.loaded_instead = _SeparateRow(made, index)
        else:
            for row in found:
                row.loaded_instead = _SeparateRow(every, every.index_of(row))
    return None
