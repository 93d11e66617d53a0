"""Buffers that a kept loop fills with what its body appends to lists, and the lists as they are after it.

Each iteration has its rows in a buffer, one for each element that it may append.  Where it may append less
than a later one, it notes which rows it has filled, and those are taken together after the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.fx

from ...._torch.symbols import assume
from ....unsupported import Unsupported
from ...models.numbers.symbolic_number import SymbolicNumberVariable
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..decisions import ProgramPoint
from ..loops.carried import CarriedLocals
from ..loops.counted_loops import Span, combined, node_of, value_of
from ..loops.early_exit import call_in, flag, unset_like
from ..state.containers import Opens
from ..subgraph import regional
from .appended import Appended, Entry
from .items import holds_numbers
from .lists_after_loops import NO_TENSOR, OF_DATA, Buffers, FilledList, FilledLists, tensors_of
from .rows_so_far import row_count, write_row


@dataclass
class _RowsOfIterations(FilledList):
    """One with ``count`` rows in its buffers.

    Where data ends the loop ``counted`` is the tensor that says how many rows have been filled; ``filled``
    says which, where there are gaps between them.
    """

    count: Variable = field(kw_only=True)
    counted: TensorVariable | None = None
    filled: TensorVariable | None = None


class ListFilling(FilledLists):
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
        super().__init__(evaluator, place, carried, appended, written)
        self.span = span
        self.done = done
        self._lists: list[_RowsOfIterations] = []
        if not appended:
            return
        if span.may_be_empty:
            raise Unsupported("list of a length that differs by iteration")
        has_gaps = any(each.may_leave_gaps for each in appended)
        can_count = span.has_unit_step() and not evaluator.graph.is_in_region
        if (done is not None or has_gaps) and not can_count:
            raise Unsupported(OF_DATA)

    # In the body.

    def fill(self, index: Variable) -> None:
        """Write what the body appends into rows; the body's graph is at hand."""
        for each in self.appended:
            self._lists.append(self._fill(each, self._position(index)))

    def _position(self, index: Variable) -> Variable:
        """The number of the iteration."""
        passed = combined(self.evaluator, "sub", index, self.span.start)
        return combined(self.evaluator, "floordiv", passed, self.span.step)

    def _fill(self, appending: Appended, passed: Variable) -> _RowsOfIterations:
        leading = appending.leading()
        has_gaps, are_alike = appending.may_leave_gaps, appending.are_alike()
        is_whole = are_alike and (leading or not appending.held) and self.span.has_unit_step()
        if not is_whole:
            if self.done is not None or has_gaps:
                raise Unsupported(OF_DATA)
            self._require_known_length()
            leading = ()  # they stay in the list as they are
        added = appending.added
        depends_on_data = has_gaps or self.done is not None
        if not depends_on_data and any(holds_numbers(e.item, appending.opens) for e in added):
            raise Unsupported(NO_TENSOR)  # numbers that Python knows where the loop is written out
        groups = [added] if is_whole else [[entry] for entry in added]
        read = appending.buffer
        count = read.count if read is not None else self._row_count(len(groups[0]), len(leading))
        each = _RowsOfIterations(appending, leading, [], count=count)
        for group in groups:
            buffers = Buffers(group, [] if read is None else [read.tensor])
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

    def _write(
        self, each: _RowsOfIterations, buffers: Buffers, at: Variable, entry: Entry, opens: Opens
    ) -> None:
        """Write the tensors of an entry into the rows at a place."""
        tensors = tensors_of(entry, opens)
        if not buffers.tensors:
            for item in tensors:
                buffer = unset_like(self.evaluator, self._outer, item, each.count)
                buffers.tensors.append(buffer)
                with self._outside():
                    for place, held in enumerate(each.leading):
                        write_row(self.evaluator, buffer, ConstantVariable(place), held)
        buffers.items = tensors
        for buffer, item in zip(buffers.tensors, tensors, strict=True):
            write_row(self.evaluator, buffer, at, item)

    def _note_filled(self, each: _RowsOfIterations, passed: Variable) -> TensorVariable:
        """Note which rows an iteration fills, in a tensor of flags."""
        evaluator, added = self.evaluator, each.appending.added
        filled = call_in(evaluator, self._outer, torch.zeros, each.count, dtype=torch.bool)
        with self._outside():
            for place in range(len(each.leading)):
                write_row(evaluator, filled, ConstantVariable(place), flag(evaluator, True))
        for place, entry in enumerate(added):
            at = self._row_of(passed, len(added), len(each.leading) + place)
            write_row(evaluator, filled, at, entry.if_any or flag(evaluator, True))
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

    def _row_count(self, entries: int, leading: int) -> Variable:
        with self._outside():
            return row_count(self.evaluator, self.span, entries, leading)

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

    def lists(self) -> Sequence[FilledList]:
        return self._lists

    def may_be_empty(self, each: FilledList) -> bool:
        return each.appending.may_be_none

    def taken_out(
        self, number: int, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        each = self._lists[number]
        if each.counted is not None:
            return self._narrowed(each, each.counted, loop)
        if each.filled is None:
            return each.count, list(each.tensors()), loop
        evaluator = self.evaluator
        found = tensor_of(evaluator, "nonzero", each.filled)
        positions = tensor_of(evaluator, "squeeze", found, 1)
        count = evaluator.call_method(positions, "size", ConstantVariable(0))
        if not isinstance(count, SymbolicNumberVariable):
            raise Unsupported(OF_DATA)
        self._bound(each, count)
        buffers = []
        for buffer in each.tensors():
            made = tensor_of(evaluator, "index_select", buffer, 0, positions)
            buffers.append(regional(made.node, made.fake))
        return count, buffers, buffers[-1].node

    def _narrowed(
        self, each: _RowsOfIterations, counted: TensorVariable, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        """The first ``counted`` rows, and what the list has held."""
        evaluator, builder = self.evaluator, self.evaluator.graph
        number = evaluator.call_method(counted, "item")
        if not isinstance(number, SymbolicNumberVariable):
            raise Unsupported(OF_DATA)
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

    def _bound(self, each: _RowsOfIterations, count: SymbolicNumberVariable) -> None:
        """Say how many rows there may be."""
        most = value_of(each.count)
        assume(count.value <= most)
        assume(count.value >= int(not each.appending.may_be_none))
