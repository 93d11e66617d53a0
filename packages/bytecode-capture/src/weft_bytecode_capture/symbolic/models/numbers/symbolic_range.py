"""``range(n)`` where ``n`` differs from call to call: kept as it is by a loop that stays in the graph."""

from __future__ import annotations

from ...._torch.symbols import unbacked_symbols
from ....captured_graph import DropDataDependence
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Variable
from ...variables.constant import ConstantVariable
from ..iterators.builtin_iterators import (
    IteratorVariable,
    RangeIteratorVariable,
    TensorRowsVariable,
    register_kept_iterator,
)
from ..torch.tensor import TensorVariable
from .symbolic_integer import SymbolicIntegerVariable
from .symbolic_number import SymbolicNumberVariable


class SymbolicRangeVariable(ConstantVariable):
    """A range of integers of which one at least is symbolic; its step has one sign in every call.

    Whatever needs its elements gets the range of this call alone.  Bounds may differ by the iteration of a
    loop around (``differs``), where it may be empty in some.
    """

    def __init__(self, start: Variable, stop: Variable, step: Variable, ascends: bool) -> None:
        self.source = None
        self.start = start
        self.stop = stop
        self.step = step
        self.ascends = ascends

    @property
    def differs(self) -> bool:
        """Whether it is another range in each iteration of a loop that is kept."""
        three = (self.start, self.stop, self.step)
        return any(isinstance(number, SymbolicIntegerVariable) for number in three)

    @property
    def value(self) -> range:
        three = (self.start, self.stop, self.step)
        if self.differs:
            raise Unsupported("decision by a loop's counter", repr(self))
        if any(map(depends_on_data, three)):
            raise DropDataDependence("a loop over a number that depends on data is not kept")
        return range(*(number.as_constant() for number in three))

    def python_type(self) -> type:
        return range

    def iterator(self, evaluator: Evaluator) -> Variable:
        values = self._spaced(evaluator)
        return super().iterator(evaluator) if values is None else RangeIteratorVariable(values)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        values = self._spaced(evaluator)
        return super().iterate(evaluator) if values is None else [*map(ConstantVariable, values)]

    def length(self, evaluator: Evaluator) -> int:
        values = self._spaced(evaluator)
        return super().length(evaluator) if values is None else len(values)

    def _spaced(self, evaluator: Evaluator) -> range | None:
        """Its elements where they are some apart: how many there are is guarded, and no more of its end.

        None for others, which are as many as the end says.
        """
        fixed = self.start.is_constant() and self.step.is_constant()
        if self.differs or not fixed or depends_on_data(self.stop):
            return None
        start, step = self.start.as_constant(), self.step.as_constant()
        if abs(step) < 2:
            return None
        if not self.has_from(evaluator, self.start):
            return range(0)
        rest = evaluator.binary_operation("sub", self.start, self.stop)
        negated = evaluator.binary_operation("floordiv", rest, self.step)
        return range(start, start - negated.as_constant() * step, step)

    def has_from(self, evaluator: Evaluator, first: Variable) -> bool:
        """Whether ``first`` is before the range's end: that is decided and guarded."""
        comparison = "gt" if self.ascends else "lt"
        return evaluator.binary_operation(comparison, self.stop, first).truth(evaluator)

    def backwards(self, evaluator: Evaluator) -> SymbolicRangeVariable | None:
        """The same numbers from the last one on; None where they are not one after the other."""
        if not self.step.is_constant() or abs(self.step.as_constant()) != 1:
            return None
        last = evaluator.binary_operation("sub", self.stop, self.step)
        before = evaluator.binary_operation("sub", self.start, self.step)
        step = ConstantVariable(-self.step.as_constant())
        return SymbolicRangeVariable(last, before, step, not self.ascends)

    def __repr__(self) -> str:
        return f"Range({self.start!r}, {self.stop!r}, {self.step!r})"


def symbolic_range(evaluator: Evaluator, arguments: Arguments) -> Variable | None:
    """``range`` of integers some of which are symbolic, for a loop to keep; None for others."""
    if len(arguments) == 1:
        arguments = [ConstantVariable(0), *arguments]
    if len(arguments) == 2:
        arguments = [*arguments, ConstantVariable(1)]
    if len(arguments) != 3 or not all(map(_is_integer, arguments)):
        return None
    start, stop, step = arguments
    if all(number.is_constant() for number in arguments) or depends_on_data(step):
        return None
    if isinstance(step, SymbolicIntegerVariable):
        raise Unsupported("decision by a loop's counter", f"step {step!r} of a range")
    zero = ConstantVariable(0)
    ascends = evaluator.binary_operation("gt", step, zero).truth(evaluator)
    if not ascends and not evaluator.binary_operation("lt", step, zero).truth(evaluator):
        return None
    made = SymbolicRangeVariable(start, stop, step, ascends)
    if any(map(depends_on_data, arguments)):
        # A break here lets the loop have a number, not one further on.
        made.has_from(evaluator, start)
    return made


def _is_integer(variable: Variable) -> bool:
    if isinstance(variable, (SymbolicNumberVariable, SymbolicIntegerVariable)):
        return variable.python_type() is int
    return variable.is_constant() and type(variable.as_constant()) is int


def depends_on_data(number: Variable) -> bool:
    return isinstance(number, SymbolicNumberVariable) and bool(unbacked_symbols(number.value))


class SymbolicRangeIteratorVariable(RangeIteratorVariable):
    """An iterator over a symbolic range, made where a loop may be kept."""

    def __init__(self, iterated: SymbolicRangeVariable) -> None:
        self.iterated = iterated
        self.position = 0
        self.exhausted = False

    def reconstruct(self, emitter: Emitter) -> None:
        if self.exhausted:
            self.position = len(self.values)
        super().reconstruct(emitter)

    def remaining(self, evaluator: Evaluator) -> int | None:
        return None

    @property
    def values(self) -> range:  # type: ignore[override]
        return self.iterated.value

    def first(self, evaluator: Evaluator) -> Variable | None:
        """The next element, None if there is none: decided and guarded, unless that differs."""
        if self.exhausted:
            return None
        first = self.iterated.start
        if self.position:
            position = ConstantVariable(self.position)
            passed = evaluator.binary_operation("mul", self.iterated.step, position)
            first = evaluator.binary_operation("add", first, passed)
        inside = self.iterated.differs or self.iterated.has_from(evaluator, first)
        return first if inside else None

    def exhaust(self) -> None:
        self.exhausted = True

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        iterated = self.iterated
        if iterated.differs:
            raise Unsupported("decision by a loop's counter", repr(iterated))
        is_fixed = iterated.start.is_constant() and iterated.step.is_constant()
        if self.position and not is_fixed:
            return None if self.exhausted else super().next_or_none(evaluator)
        first = self.first(evaluator)
        if first is None:
            return None
        self.position += 1
        return first


class SymbolicRowsVariable(SymbolicRangeIteratorVariable):
    """An iterator over the rows of a tensor that has another number of them in each call."""

    def __init__(self, tensor: Variable, count: SymbolicNumberVariable) -> None:
        first, step = ConstantVariable(0), ConstantVariable(1)
        super().__init__(SymbolicRangeVariable(first, count, step, True))
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


@register_kept_iterator
def _range_iterator(evaluator: Evaluator, iterated: Variable) -> IteratorVariable | None:
    if not isinstance(iterated, SymbolicRangeVariable):
        return None
    return SymbolicRangeIteratorVariable(iterated)


@register_kept_iterator
def _row_iterator(evaluator: Evaluator, iterated: Variable) -> IteratorVariable | None:
    """An iterator over a tensor's rows that a loop may keep; None for few rows, and for other values."""
    options = evaluator.state.options
    if not isinstance(iterated, TensorVariable) or iterated.fake.dim() == 0:
        return None
    if not options.keep_control_flow:
        return None
    count = iterated.fake.shape[0]
    if isinstance(count, int):
        if count < options.rolled_loop_length:
            return None
        return TensorRowsVariable(_as_it_is(evaluator, iterated), count)
    number = iterated.call_method(evaluator, "size", [ConstantVariable(0)], {})
    if not isinstance(number, SymbolicNumberVariable):
        return None
    return SymbolicRowsVariable(_as_it_is(evaluator, iterated), number)


def _as_it_is(evaluator: Evaluator, tensor: Variable) -> Variable:
    """A view that has the tensor's rows whatever ``t_`` and the like make of the tensor meanwhile."""
    return evaluator.graph.call_method(
        evaluator, "__getitem__", tensor, [ConstantVariable(...)], {}
    )
