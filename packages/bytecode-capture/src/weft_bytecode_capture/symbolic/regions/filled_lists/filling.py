"""Buffers that a kept loop fills with what its body appends to lists, and the lists as they are after it.

Each iteration has its rows in a buffer, one for each element that it may append.  Where it may append less
than a later one, it notes which rows it has filled, and those are taken together after the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.fx

from ...._torch.symbols import assume
from ....unsupported import Unsupported
from ...models.numbers.symbolic_number import SymbolicNumberVariable
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..branches.assumed_decisions import require
from ..decisions import ProgramPoint, refuse
from ..loops.carried import CarriedLocals
from ..loops.counted_loops import Span, combined, node_of, value_of
from ..loops.early_exit import call_in, flag, unset_like
from ..state.containers import Opens, opened
from ..state.python_state import leaves
from ..subgraph import regional
from .appended import Appended, Entry
from .items import filled_in, holds_numbers, rows_of
from .rows import LoopRows
from .shared_rows import LeadingRows, RowSharing

_OF_DATA = "list of a length that depends on data"
_NO_TENSOR = "append of something that is no tensor"


@dataclass
class _Buffers:
    """Buffers for the tensors in what is appended: with a row for each of ``entries`` of an iteration.

    ``items`` are the tensors of the last entry, one for each of ``tensors``, the buffers.
    """

    entries: Sequence[Entry]
    tensors: list[TensorVariable] = field(default_factory=list)
    items: list[TensorVariable] = field(default_factory=list)


@dataclass
class _FilledList:
    """A list that a loop appends to, its buffers of ``count`` rows.

    The first rows are what the list has held before, its ``leading`` elements.  Where data ends the loop
    ``counted`` is the tensor that says how many rows have been filled; ``filled`` says which, where there
    are gaps between them.
    """

    appending: Appended
    leading: Sequence[TensorVariable]
    count: Variable
    buffers: list[_Buffers]
    counted: TensorVariable | None = None
    filled: TensorVariable | None = None

    def tensors(self) -> Iterator[TensorVariable]:
        """All buffers, in order."""
        return (tensor for buffers in self.buffers for tensor in buffers.tensors)

    def items(self) -> Iterator[TensorVariable]:
        """What the body puts into each of them."""
        return (item for buffers in self.buffers for item in buffers.items)


class ListFilling:
    """The lists that the body of the loop at ``place`` appends to; ``done`` says that data has ended it."""

    def __init__(
        self,
        evaluator: Frame,
        place: ProgramPoint,
        span: Span,
        carried: CarriedLocals,
        appended: Sequence[Appended],
        done: TensorVariable | None,
        written: int,
    ) -> None:
        self.evaluator = evaluator
        self.place = place
        self.span = span
        self.carried = carried
        self.appended = appended
        self.done = done
        self._body_start = written
        self._written = evaluator.state.aliases.written[written:]
        self._outer = evaluator.graph.graph
        self._lists: list[_FilledList] = []
        if not appended:
            return
        if span.may_be_empty:
            raise Unsupported("list of a length that differs by iteration")
        has_gaps = any(each.may_leave_gaps for each in appended)
        can_count = span.has_unit_step() and not evaluator.graph.is_in_region
        if (done is not None or has_gaps) and not can_count:
            raise Unsupported(_OF_DATA)

    # In the body.

    def fill(self, index: Variable) -> None:
        """Write what the body appends into rows; the body's graph is at hand."""
        for each in self.appended:
            self._lists.append(self._fill(each, self._position(index)))

    def _position(self, index: Variable) -> Variable:
        """The number of the iteration."""
        passed = combined(self.evaluator, "sub", index, self.span.start)
        return combined(self.evaluator, "floordiv", passed, self.span.step)

    def _fill(self, appending: Appended, passed: Variable) -> _FilledList:
        leading = appending.leading()
        has_gaps, are_alike = appending.may_leave_gaps, appending.are_alike()
        is_whole = are_alike and (leading or not appending.held) and self.span.has_unit_step()
        if not is_whole:
            if self.done is not None or has_gaps:
                raise Unsupported(_OF_DATA)
            self._require_known_length()
        added = appending.added
        depends_on_data = has_gaps or self.done is not None
        if not depends_on_data and any(holds_numbers(e.item, appending.opens) for e in added):
            raise Unsupported(_NO_TENSOR)  # numbers that Python knows where the loop is written out
        each = _FilledList(appending, leading, self._row_count(len(added), leading), [])
        for group in [added] if is_whole else [[entry] for entry in added]:
            buffers = _Buffers(group)
            each.buffers.append(buffers)
            for place, entry in enumerate(group):
                at = self._row_of(passed, len(group), len(leading) + place)
                self._write(each, buffers, at, entry, appending.opens)
        if has_gaps:
            each.filled = self._note_filled(each, passed)
        elif self.done is not None:
            each.counted = self._count(appending)
        return each

    def _row_of(self, passed: Variable, each: int, first: int) -> Variable:
        """A row of the iteration that ``passed`` are before, of ``each``; the first one's is ``first``."""
        at = combined(self.evaluator, "mul", passed, ConstantVariable(each))
        return combined(self.evaluator, "add", at, ConstantVariable(first))

    def _require_known_length(self) -> None:
        if self.span.values is None:
            raise Unsupported("loop of another length in each call, of which all elements are used")

    def _row_count(self, entries: int, leading: Sequence[TensorVariable]) -> Variable:
        with self._outside():
            count = self.span.count(self.evaluator)
            count = combined(self.evaluator, "mul", count, ConstantVariable(entries))
            return combined(self.evaluator, "add", count, ConstantVariable(len(leading)))

    def _write(
        self, each: _FilledList, buffers: _Buffers, at: Variable, entry: Entry, opens: Opens
    ) -> None:
        """Write the tensors of an entry into the rows at a place."""
        found = leaves(entry.item, opens) or ()
        tensors = [item for item in found if isinstance(item, TensorVariable)]
        others = [item for item in found if not isinstance(item, TensorVariable)]
        if not tensors or not all(item.is_constant() for item in others):
            raise Unsupported(_NO_TENSOR, repr(entry.item))
        if not buffers.tensors:
            for item in tensors:
                buffer = unset_like(self.evaluator, self._outer, item, each.count)
                buffers.tensors.append(buffer)
                with self._outside():
                    for place, held in enumerate(each.leading):
                        self._write_row(buffer, ConstantVariable(place), held)
        buffers.items = tensors
        for buffer, item in zip(buffers.tensors, tensors, strict=True):
            self._write_row(buffer, at, item)

    def _write_row(self, buffer: TensorVariable, place: Variable, item: Variable) -> None:
        builder = self.evaluator.graph
        where = [buffer, ConstantVariable(0), place]
        row = builder.call_function(self.evaluator, torch.select, where, {})
        builder.call_method(self.evaluator, "copy_", row, (item,), {})

    def _note_filled(self, each: _FilledList, passed: Variable) -> TensorVariable:
        """Note which rows an iteration fills, in a tensor of flags."""
        evaluator, added = self.evaluator, each.appending.added
        filled = call_in(evaluator, self._outer, torch.zeros, each.count, dtype=torch.bool)
        with self._outside():
            for place in range(len(each.leading)):
                self._write_row(filled, ConstantVariable(place), flag(evaluator, True))
        for place, entry in enumerate(added):
            at = self._row_of(passed, len(added), len(each.leading) + place)
            self._write_row(filled, at, entry.if_any or flag(evaluator, True))
        return filled

    def _count(self, appending: Appended) -> TensorVariable:
        """Carry how many rows have been filled."""
        none = call_in(self.evaluator, self._outer, torch.zeros, (), dtype=torch.int64)
        counted = self.carried.add("count", none, None)
        total = counted.parameter
        for entry in appending.added:
            total = tensor_of(self.evaluator, torch.add, total, entry.if_any or 1)
        counted.result = total
        return counted.parameter

    @contextlib.contextmanager
    def _outside(self) -> Iterator[None]:
        """Nodes go before the loop meanwhile."""
        builder = self.evaluator.graph
        inner, builder.graph = builder.graph, self._outer
        try:
            yield
        finally:
            builder.graph = inner

    # After the loop.

    def finish(self, loop: torch.fx.Node, taken: Sequence[torch.fx.Node]) -> None:
        """Put the rows that ``loop`` has filled into the lists."""
        if not self._lists:
            return
        self._require_own()
        evaluator = self.evaluator
        found = [self._taken_out(each, loop) for each in self._lists]
        rows = [
            (buffer, item)
            for each, (_, buffers, _) in zip(self._lists, found, strict=True)
            for buffer, item in zip(buffers, each.items(), strict=True)
        ]
        raw = [buffer for each in self._lists for buffer in each.tensors()]
        sharing = RowSharing(evaluator, self.place, self.carried.tensors, taken, self._written, raw)
        shared = iter(sharing.note(rows))
        for each, (count, buffers, node) in zip(self._lists, found, strict=True):
            leading = (each.leading, self._leading_rows(each.leading))
            one = partial(require, operator="ge", number=count, bound=1)
            depends = each.appending.may_be_none and not count.is_constant()
            given = (*leading, one if depends else None)
            made = iter(
                LoopRows(evaluator, self.place, buffer, count, node, next(shared), *given)
                for buffer in buffers
            )
            parts = [[next(made) for _ in b.tensors] for b in each.buffers]
            self._put(each, parts)

    def _require_own(self) -> None:
        """
        :raises Unsupported: a container that is appended is one that a local has, or another list.
        """
        met = set(self.carried.met)
        for each in self.appended:
            for entry in each.added:
                for container in opened(entry.item, each.opens):
                    if id(container) in met:
                        raise Unsupported(_NO_TENSOR, repr(container))
                    met.add(id(container))

    def _taken_out(
        self, each: _FilledList, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        """How many rows there are, in which tensors, and the node behind which these are at hand."""
        if each.counted is not None:
            return self._narrowed(each, each.counted, loop)
        if each.filled is None:
            return each.count, list(each.tensors()), loop
        evaluator = self.evaluator
        found = tensor_of(evaluator, "nonzero", each.filled)
        positions = tensor_of(evaluator, "squeeze", found, 1)
        count = evaluator.call_method(positions, "size", ConstantVariable(0))
        if not isinstance(count, SymbolicNumberVariable):
            raise Unsupported(_OF_DATA)
        self._bound(each, count)
        buffers = []
        for buffer in each.tensors():
            made = tensor_of(evaluator, "index_select", buffer, 0, positions)
            buffers.append(regional(made.node, made.fake))
        return count, buffers, buffers[-1].node

    def _narrowed(
        self, each: _FilledList, counted: TensorVariable, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        """The first ``counted`` rows, and what the list has held."""
        evaluator, builder = self.evaluator, self.evaluator.graph
        number = evaluator.call_method(counted, "item")
        if not isinstance(number, SymbolicNumberVariable):
            raise Unsupported(_OF_DATA)
        self._bound(each, number)
        count = combined(evaluator, "add", number, ConstantVariable(len(each.leading)))
        buffers = []
        for buffer in each.tensors():
            with builder.fake_mode:
                fake = torch.narrow(buffer.fake, 0, 0, value_of(count))  # which is inside, always
            node = builder.graph.call_function(torch.narrow, (buffer.node, 0, 0, node_of(count)))
            node.meta.update(loop.meta)
            node.meta["example_value"] = fake
            buffers.append(regional(node, fake))
        return count, buffers, buffers[-1].node

    def _bound(self, each: _FilledList, count: SymbolicNumberVariable) -> None:
        """Say how many rows there may be."""
        most = value_of(each.count)
        assume(count.value <= most)
        assume(count.value >= int(not each.appending.may_be_none))

    def _put(self, each: _FilledList, parts: Sequence[Sequence[LoopRows]]) -> None:
        target = each.appending.target
        templates = [buffers.entries[0].item for buffers in each.buffers]
        if not parts[0][0].count.is_constant():
            target.form = rows_of(templates[0], parts[0], each.appending.opens)
            return
        columns = [[list(rows.every()) for rows in group] for group in parts]
        added: list[Variable] = []
        for number in range(len(columns[0][0])):
            for template, group in zip(templates, columns, strict=True):
                tensors = iter([column[number] for column in group])
                added.append(filled_in(template, tensors, each.appending.opens))
        target._items[len(target._items) - len(each.leading) :] = added

    def _leading_rows(self, leading: Sequence[TensorVariable]) -> LeadingRows | None:
        """What watches over the copies of ``leading`` in a buffer."""
        if not leading:
            return None
        refusal = refuse(self.evaluator, self.place, "write to a tensor that is in a list")
        made = LeadingRows(self.evaluator, leading, self._body_start, refusal)
        self.evaluator.state.aliases.copies.append(made)
        return made
