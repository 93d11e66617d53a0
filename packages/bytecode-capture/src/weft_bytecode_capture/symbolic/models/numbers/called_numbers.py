"""What Python makes of sizes and numbers that vary: ``math.log(n)``, ``round(n * 0.3)``, ``n & 1``.

They are computed on entry of the frame, from the numbers of the call, and are then numbers of the call
themselves: nothing is known of them but what the program asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft_guards import (
    ARITHMETIC,
    Computation,
    EqualsConstant,
    Operand,
    SizeExpression,
    Source,
    SymbolSource,
    expression_function,
)

from ...._torch.symbols import expression_of
from ....sources import ComputedSource
from ...protocol import Evaluator
from ...shapes import ShapeSymbols
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from .data_numbers import number_of_data
from .representations import NumberVariable
from .symbolic_float import current_number, float_operand
from .symbolic_number import SymbolicNumberVariable

_MAX_PARTS = 40
"""Of a computation and those that it reads.  One that reads itself twice a step doubles each time."""


class CallOfNumbers:
    """``function`` of numbers: called with those at the ``sources`` of its operands, without repetition.

    ``parts``: how many functions and numbers the result is made of.  Whatever a call needs is made here,
    since code of the program calls it, whose calls are captured.
    """

    def __init__(self, function: Callable[..., Any], operands: Sequence[Operand]) -> None:
        self.function = function
        self.operands = tuple(operands)
        self.__name__: str = getattr(function, "__name__", "new")
        found = dict.fromkeys(source for operand in operands for source in _read_by(operand))
        self.sources: tuple[SymbolSource, ...] = tuple(found)
        places = {source: place for place, source in enumerate(self.sources)}
        self._readers = [_reader(operand, places) for operand in operands]
        self.parts: int = len(operands) + 1 + sum(_parts(s.source) for s in self.sources)
        # A one and a 1.0 are equal, and round() makes an integer or a float of them.
        self._identity = function, *((type(o), repr(o), o) for o in operands)
        self._hash = hash(self._identity)

    def each_time(self) -> Callable[..., Any]:
        """The same, equal to itself alone: of what is new whenever the program asks for it."""
        return functools.partial(self)

    def __call__(self, *numbers: Any) -> Any:
        return self.function(*(read(numbers) for read in self._readers))

    def __reduce__(self) -> Any:
        return CallOfNumbers, (self.function, self.operands)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallOfNumbers) and other._identity == self._identity

    def __hash__(self) -> int:
        return self._hash


def _parts(source: Source) -> int:
    call = source.compute if isinstance(source, ComputedSource) else None
    return call.parts if isinstance(call, CallOfNumbers) else 0


def _read_by(operand: Operand) -> Iterator[SymbolSource]:
    if isinstance(operand, SymbolSource):
        yield operand
    elif isinstance(operand, SizeExpression):
        yield from (source for _, source in operand.symbol_sources)
    elif isinstance(operand, Computation):
        for part in operand.operands:
            yield from _read_by(part)


def _reader(
    operand: Operand, places: dict[SymbolSource, int]
) -> Callable[[Sequence[Any]], int | float]:
    """A function that gives an operand, of the numbers at its sources."""
    if isinstance(operand, SymbolSource):
        place = places[operand]
        return lambda numbers: numbers[place]
    if isinstance(operand, SizeExpression):
        symbols = [symbol for symbol, _ in operand.symbol_sources]
        chosen = [places[source] for _, source in operand.symbol_sources]
        evaluate = expression_function(operand.expression, symbols)
        return lambda numbers: evaluate(*(numbers[place] for place in chosen))
    if isinstance(operand, Computation):
        function = ARITHMETIC[operand.operation][0]
        readers = [_reader(part, places) for part in operand.operands]
        return lambda numbers: function(*(read(numbers) for read in readers))
    return lambda numbers: operand


def number_of_call(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> Variable | None:
    """What ``function``, which has no effect, gives of numbers of which one at least varies.

    None where it raises now, gives no number, or data decides.
    """
    call = call_of_numbers(evaluator, function, arguments)
    if call is None:
        return None
    shapes = evaluator.graph.shapes
    try:
        value = function(*map(current_number, arguments))
    except (ArithmeticError, TypeError, ValueError):
        return None
    source = ComputedSource(call, call.sources)
    if type(value) in (int, float):
        number = shapes.varying(value, source)
        if number is not None:
            return evaluator.graph.add_number(number, source)
    elif type(value) is not bool:
        return None
    evaluator.guard(source, EqualsConstant(value))
    return ConstantVariable(value)


def number_of_each_call(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> Variable | None:
    """The same, also of numbers that were drawn on entry of the frame."""
    found = number_of_call(evaluator, function, arguments)
    return number_of_data(evaluator, function, arguments) if found is None else found


def call_of_numbers(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> CallOfNumbers | None:
    """A call that code can make on entry; None where data decides what it is given, or nothing varies."""
    shapes = evaluator.graph.shapes
    if not evaluator.state.options.numbers_by_code:
        return None
    if not all(_is_of_call(shapes, argument) for argument in arguments):
        return None
    call = CallOfNumbers(function, [float_operand(shapes, a) for a in arguments])
    return call if call.sources and call.parts <= _MAX_PARTS else None


def _is_of_call(shapes: ShapeSymbols, variable: Variable) -> bool:
    """Whether a number is a constant, or one that the sizes and numbers of the call give now."""
    if not isinstance(variable, NumberVariable):
        return variable.is_constant() and type(variable.as_constant()) in (int, float, bool)
    if not isinstance(variable, SymbolicNumberVariable) or not variable.is_invariant:
        return False
    symbols = expression_of(variable.value).free_symbols
    if not all(map(shapes.is_of_call, symbols)):
        return False
    return type(current_number(variable)) is variable.python_type()
