"""What a kept loop counts: where its counter begins and ends, and the iterators that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ....unsupported import Unsupported
from ...models.containers.sequences import TupleVariable
from ...models.iterators.joint_iterators import JointIteratorVariable
from ...models.numbers.symbolic_integer import (
    integer_operand,
)
from ...models.numbers.symbolic_range import depends_on_data
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable


@dataclass(frozen=True)
class Span:
    """The numbers that a loop's counter has: ``start``, and ``step`` more each time, before ``stop``.

    Each is an integer, constant or symbolic; ``ascends``: the step is greater than 0 in every call;
    ``may_be_empty``: it differs by data or by the iteration of a loop around, and there may be none of them.
    """

    start: Variable
    stop: Variable
    step: Variable
    ascends: bool
    may_be_empty: bool = False

    @property
    def values(self) -> range | None:
        """The numbers themselves; None where one of the three is symbolic."""
        three = (self.start, self.stop, self.step)
        if not all(number.is_constant() for number in three):
            return None
        return range(*(number.as_constant() for number in three))

    def has_unit_step(self) -> bool:
        """Whether the numbers follow one another, up or down."""
        return self.step.is_constant() and abs(self.step.as_constant()) == 1

    def count(self, evaluator: Frame) -> Variable:
        """How many numbers there are, of which there is at least one; symbolic where the span is."""
        if self.values is not None:
            return ConstantVariable(len(self.values))
        operation = evaluator.binary_operation
        ends = (self.stop, self.start) if self.ascends else (self.start, self.stop)
        distance = combined(evaluator, "sub", *ends)
        if self.has_unit_step():
            return distance
        size = self.step if self.ascends else operation("mul", self.step, ConstantVariable(-1))
        most = operation("add", distance, operation("sub", size, ConstantVariable(1)))
        return operation("floordiv", most, size)

    def last(self, evaluator: Frame) -> Variable:
        """The last of the numbers, in the graph at hand.

        :raises Unsupported: there may be none.
        """
        if self.values is not None:
            return ConstantVariable(self.values[-1])
        if self.may_be_empty:
            raise Unsupported("loop of another length in each iteration, of which the last is used")
        if self.has_unit_step():
            return combined(evaluator, "sub", self.stop, self.step)
        passed = combined(evaluator, "sub", self.count(evaluator), ConstantVariable(1))
        return combined(evaluator, "add", combined(evaluator, "mul", self.step, passed), self.start)


_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}


def combined(evaluator: Frame, operation: str, left: Variable, right: Variable) -> Variable:
    """An operation's result on integers: ``left`` itself where ``right`` changes nothing."""
    if right.is_constant() and right.as_constant() == _NEUTRAL[operation]:
        return left
    return evaluator.binary_operation(operation, left, right)


def node_of(number: Variable) -> Any:
    """An integer as an argument of a node."""
    return _pair(number)[0]


def value_of(number: Variable) -> Any:
    """An integer as torch computes with it."""
    return _pair(number)[1]


def _pair(number: Variable) -> tuple[Any, Any]:
    found = integer_operand(number)
    assert found is not None
    return found


def counted_from_zero(count: Variable) -> Span:
    """The numbers below ``count``."""
    return Span(ConstantVariable(0), count, ConstantVariable(1), True)


class CountedIterator(Protocol):
    """An iterator whose elements a counter determines."""

    position: int

    def element(self, evaluator: Frame, index: Variable) -> Variable:
        """The element where the counter is ``index``."""

    def exhaust(self) -> None:
        """Go to the end: a loop has used all elements."""


# Loops over ``enumerate`` and ``zip`` of ranges and of tensors' rows: one counter for all of them.


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

    def element(self, evaluator: Frame, index: Variable) -> Variable:
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


def joint_span(evaluator: Frame, parts: Sequence[Span], is_strict: bool) -> Span | None:
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


def _linear(evaluator: Frame, index: Variable, start: Variable, step: Variable) -> Variable:
    """``start + step * index``."""
    return combined(evaluator, "add", combined(evaluator, "mul", index, step), start)
