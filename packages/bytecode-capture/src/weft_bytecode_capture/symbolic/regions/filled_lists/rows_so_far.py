"""Lists that a loop fills and its body reads as a whole: ``torch.stack(tokens).eq(end).any()`` ends it.

What has been appended so far are the first rows of the buffer that the loop fills, which is made at the first
such read; what this iteration has appended is written there before each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..loops.counted_loops import Span, combined
from ..loops.early_exit import unset_like
from ..subgraph import Subgraph


def row_count(evaluator: Frame, span: Span, entries: int, leading: int) -> Variable:
    """How many rows a buffer has: ``leading``, and ``entries`` of each iteration."""
    count = combined(evaluator, "mul", span.count(evaluator), ConstantVariable(entries))
    return combined(evaluator, "add", count, ConstantVariable(leading))


def write_row(evaluator: Frame, buffer: TensorVariable, place: Variable, item: Variable) -> None:
    """Write a tensor into a row."""
    where = [buffer, ConstantVariable(0), place]
    row = evaluator.graph.call_function(evaluator, torch.select, where, {})
    evaluator.graph.call_method(evaluator, "copy_", row, (item,), {})


@dataclass
class FilledBuffer:
    """A buffer of ``count`` rows that a loop fills, of which the first are ``leading``."""

    tensor: TensorVariable
    count: Variable
    leading: Sequence[TensorVariable]


@dataclass
class RowsSoFar:
    """What the iterations of a loop over ``span`` have appended to a list, one tensor each, as rows.

    ``index`` is the loop's counter, ``body`` its body.
    """

    evaluator: Frame
    span: Span
    index: Variable
    body: Subgraph
    buffer: FilledBuffer | None = field(default=None, init=False)

    def read(
        self, item: TensorVariable, leading: Sequence[TensorVariable]
    ) -> TensorVariable | None:
        """All rows up to ``item``, which this iteration has appended; None where a branch reads them."""
        evaluator = self.evaluator
        if evaluator.graph.graph is not self.body.graph or not self._steps_by_one():
            return None
        if self.buffer is None:
            self.buffer = self._made(item, leading)
        passed = combined(evaluator, "sub", self.index, self.span.start)
        place = combined(evaluator, "add", passed, ConstantVariable(len(leading)))
        write_row(evaluator, self.buffer.tensor, place, item)
        count = evaluator.binary_operation("add", place, ConstantVariable(1))
        bounds = (ConstantVariable(0), ConstantVariable(0), count)
        rows = evaluator.graph.call_method(evaluator, "narrow", self.buffer.tensor, bounds, {})
        assert isinstance(rows, TensorVariable)
        return rows

    def _steps_by_one(self) -> bool:
        step = self.span.step
        return step.is_constant() and step.as_constant() == 1 and not self.span.may_be_empty

    def _made(self, item: TensorVariable, leading: Sequence[TensorVariable]) -> FilledBuffer:
        evaluator = self.evaluator
        with self.body.around():
            count = row_count(evaluator, self.span, 1, len(leading))
            buffer = unset_like(evaluator, evaluator.graph.graph, item, count)
            for place, held in enumerate(leading):
                write_row(evaluator, buffer, ConstantVariable(place), held)
        return FilledBuffer(buffer, count, leading)
