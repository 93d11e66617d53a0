"""Loops over ``enumerate`` and ``zip`` of ranges and of tensors' rows: one counter for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.iterators import JointIteratorVariable
from ..variables.sequences import TupleVariable
from .span import CountedIterator, Span

if TYPE_CHECKING:
    from ..evaluator import Evaluator


class JointElements:
    """The elements of a joint iterator by the number of the iteration, from the next one on."""

    def __init__(
        self,
        iterator: JointIteratorVariable,
        parts: Sequence[tuple[CountedIterator, Span]],
    ) -> None:
        self._iterator = iterator
        self._parts = parts
        self.position = iterator.advanced

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        """What the iteration number ``index`` gets."""
        elements = [
            part.element(evaluator, _linear(evaluator, index, span.start, span.step))
            for part, span in self._parts
        ]
        if self._iterator.count is not None:
            elements.insert(0, _linear(evaluator, index, self._iterator.count, 1))
        return TupleVariable(elements)

    def exhaust(self) -> None:
        """Nothing else sees the parts, which were made for this one: all of them may end."""
        for part, _ in self._parts:
            part.exhaust()


def joint_span(parts: Sequence[Span], is_strict: bool) -> Span | None:
    """The counter of iterators that go on together; None where it isn't known which ends first.

    ``is_strict``: also None where one ends before the others, which is an error.
    """
    if all(part.values is not None for part in parts):
        counts = {len(part.values) for part in parts if part.values is not None}
        if is_strict and len(counts) > 1:
            return None
        return Span(0, min(counts), 1, range(min(counts)))
    first = parts[0]
    stops = {(part.stop_node, part.start, part.step) for part in parts}
    if len(stops) == 1 and first.step == 1 and first.start == 0:
        return first
    return None


def _linear(evaluator: Evaluator, index: Variable, start: int, step: int) -> Variable:
    """``start + step * index``."""
    if step != 1:
        index = evaluator.binary_operation("mul", index, ConstantVariable(step))
    if start != 0:
        index = evaluator.binary_operation("add", index, ConstantVariable(start))
    return index
