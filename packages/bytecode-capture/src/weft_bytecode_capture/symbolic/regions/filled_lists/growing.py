"""Lists that a loop fills whose iterations nothing bounds: a buffer that each of them makes longer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from ....unsupported import Unsupported
from ...models.containers.sequences import ListVariable
from ...models.numbers.symbolic_number import SymbolicNumberVariable
from ...models.torch.tensor import TensorVariable, tensor_of
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..loops.early_exit import call_in, unset_like
from ..subgraph import Carried
from .appended import Appended, Entry
from .lists_after_loops import OF_DATA, Buffers, FilledList, FilledLists, tensors_of


class GrowingLists(FilledLists):
    """The lists that the body of a loop appends to of which only data says how many iterations it has."""

    def fill(self) -> None:
        """Put what the body appends behind the rows that there are; the body's graph is at hand."""
        self._lists = [self._fill(number, each) for number, each in enumerate(self.appended)]

    def _fill(self, number: int, appending: Appended) -> FilledList:
        leading = appending.leading()
        if not appending.are_alike() or (appending.held and not leading):
            raise Unsupported(OF_DATA)
        first = tensors_of(appending.added[0], appending.opens)
        carried = [
            self._carry((f"list {number}", k), item, leading) for k, item in enumerate(first)
        ]
        buffers = Buffers(appending.added, [buffer.parameter for buffer in carried])
        results = buffers.tensors
        for entry in appending.added:
            buffers.items = tensors_of(entry, appending.opens)
            rows = self._rows(entry, buffers.items)
            results = [
                tensor_of(self.evaluator, torch.cat, ListVariable([result, row]))
                for result, row in zip(results, rows, strict=True)
            ]
        for buffer, result in zip(carried, results, strict=True):
            buffer.result = result
        return FilledList(appending, leading, [buffers])

    def _carry(
        self, key: tuple[str, int], item: TensorVariable, leading: Sequence[TensorVariable]
    ) -> Carried:
        """The buffer of what is like ``item``, as the loop carries it."""
        if leading:
            start = call_in(self.evaluator, self._outer, torch.stack, ListVariable(list(leading)))
        else:
            start = unset_like(self.evaluator, self._outer, item, ConstantVariable(0))
        return self.carried.add_rows(key, start)

    def _rows(self, entry: Entry, items: Sequence[TensorVariable]) -> list[TensorVariable]:
        """One row of each of ``items``; none in an iteration that does not append."""
        evaluator = self.evaluator
        rows = [tensor_of(evaluator, "unsqueeze", item, 0) for item in items]
        if entry.if_any is None:
            return rows
        flags = tensor_of(evaluator, "reshape", entry.if_any, 1)
        places = tensor_of(evaluator, "squeeze", tensor_of(evaluator, "nonzero", flags), 1)
        return [tensor_of(evaluator, "index_select", row, 0, places) for row in rows]

    def lists(self) -> Sequence[FilledList]:
        return self._lists

    def may_be_empty(self, each: FilledList) -> bool:
        return not each.leading

    def taken_out(
        self, number: int, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        buffers = list(self._lists[number].tensors())
        count = self.evaluator.call_method(buffers[0], "size", ConstantVariable(0))
        if not isinstance(count, SymbolicNumberVariable):
            raise Unsupported(OF_DATA)
        return count, buffers, loop
