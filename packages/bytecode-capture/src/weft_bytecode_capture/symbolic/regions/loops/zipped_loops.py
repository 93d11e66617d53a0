"""Loops over ``enumerate`` and ``zip`` of ranges and of tensors' rows: one counter for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...models.containers.sequences import TupleVariable
from ...models.iterators.builtin_iterators import JointIteratorVariable
from ...models.numbers.symbolic_range import depends_on_data
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from .counted_loops import CountedIterator, Span, combined, counted_from_zero

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator


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

    def element(self, evaluator: FrameEvaluator, index: Variable) -> Variable:
        """What the iteration number ``index`` gets."""
        elements = [
            part.element(evaluator, _linear(evaluator, index, span.start, span.step))
            for part, span in self._parts
        ]
        if self._iterator.count is not None:
            elements.insert(
                0, combined(evaluator, "add", index, ConstantVariable(self._iterator.count))
            )
        return TupleVariable(elements)

    def exhaust(self) -> None:
        """Nothing else sees the parts, which were made for this one: all of them may end."""
        for part, _ in self._parts:
            part.exhaust()


def joint_span(evaluator: FrameEvaluator, parts: Sequence[Span], is_strict: bool) -> Span | None:
    """The counter of iterators that go on together; None where it isn't known which ends first.

    ``is_strict``: also None where one ends before the others, which is an error.
    """
    shortest = parts[0].count(evaluator)
    differs = any(part.may_be_empty for part in parts)
    if differs and len(parts) > 1:
        return None
    for part in parts[1:]:
        count = part.count(evaluator)
        if any(map(depends_on_data, (count, shortest))):
            return None
        if is_strict and not evaluator.binary_operation("eq", count, shortest).truth(evaluator):
            return None
        if evaluator.binary_operation("lt", count, shortest).truth(evaluator):
            shortest = count
    return replace(counted_from_zero(shortest), may_be_empty=differs)


def _linear(
    evaluator: FrameEvaluator, index: Variable, start: Variable, step: Variable
) -> Variable:
    """``start + step * index``."""
    return combined(evaluator, "add", combined(evaluator, "mul", index, step), start)
