"""``range(n)`` where ``n`` differs from call to call: kept as it is by a loop that stays in the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._torch import unbacked_symbols
from ...captured_graph import DropDataDependence
from .base import Variable
from .constant import ConstantVariable
from .iterators import IteratorVariable, RangeIteratorVariable, TensorRowsVariable
from .symbolic_number import SymbolicNumberVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


class SymbolicRangeVariable(ConstantVariable):
    """A range with a symbolic stop; whatever needs its elements gets the range of this call alone."""

    def __init__(self, start: int, stop: SymbolicNumberVariable, step: int) -> None:
        self.source = None
        self.start = start
        self.stop = stop
        self.step = step

    @property
    def value(self) -> range:
        if unbacked_symbols(self.stop.value):
            raise DropDataDependence("a loop over a number that depends on data is not kept")
        return range(self.start, self.stop.as_constant(), self.step)

    def python_type(self) -> type:
        return range

    def __repr__(self) -> str:
        return f"Range({self.start}, {self.stop!r}, {self.step})"


class SymbolicRangeIteratorVariable(RangeIteratorVariable):
    """An iterator over a range with a symbolic stop, made where a loop may be kept."""

    def __init__(self, iterated: SymbolicRangeVariable) -> None:
        self.iterated = iterated
        self.position = 0
        self.exhausted = False

    def reconstruct(self, emitter: Emitter) -> None:
        if self.exhausted:
            self.position = len(self.values)
        super().reconstruct(emitter)

    @property
    def values(self) -> range:  # type: ignore[override]
        return self.iterated.value

    @property
    def stop(self) -> SymbolicNumberVariable:
        return self.iterated.stop

    def first(self, evaluator: Evaluator) -> int | None:
        """The next element, None if there is none: that is decided and guarded."""
        if self.exhausted:
            return None
        first = self.iterated.start + self.position * self.iterated.step
        comparison = "gt" if self.iterated.step > 0 else "lt"
        inside = self.stop.binary_operation(evaluator, comparison, ConstantVariable(first), False)
        assert inside is not None
        return first if inside.truth(evaluator) else None

    def exhaust(self) -> None:
        self.exhausted = True

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        first = self.first(evaluator)
        if first is None:
            return None
        self.position += 1
        return ConstantVariable(first)


class SymbolicRowsVariable(SymbolicRangeIteratorVariable):
    """An iterator over the rows of a tensor that has another number of them in each call."""

    def __init__(self, tensor: Variable, count: SymbolicNumberVariable) -> None:
        super().__init__(SymbolicRangeVariable(0, count, 1))
        self.rows = TensorRowsVariable(tensor, 0)

    def python_type(self) -> type:
        return self.rows.python_type()

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        return self.rows.element(evaluator, index)

    def reconstruct(self, emitter: Emitter) -> None:
        self.rows.position = self.position
        self.rows.reconstruct(emitter)

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        index = super().next_or_none(evaluator)
        return None if index is None else self.element(evaluator, index)


def row_iterator(evaluator: Evaluator, iterated: Variable) -> IteratorVariable | None:
    """An iterator over a tensor's rows that a loop may keep; None for few rows, and for other values."""
    options = evaluator.state.options
    if not isinstance(iterated, TensorVariable) or iterated.fake.dim() == 0:
        return None
    if not options.keep_control_flow:
        return None
    count = iterated.fake.shape[0]
    if isinstance(count, int):
        return TensorRowsVariable(iterated, count) if count >= options.rolled_loop_length else None
    number = iterated.call_method(evaluator, "size", [ConstantVariable(0)], {})
    return (
        SymbolicRowsVariable(iterated, number)
        if isinstance(number, SymbolicNumberVariable)
        else None
    )
