"""Numbers that the graph reads from tensors: floats, and comparisons that only data decides.

Integers are :class:`SymbolicNumberVariable`, as sizes are.
"""

from __future__ import annotations

import operator
import operator as operator_module
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...._torch.symbols import new_float, unbacked_symbols
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...graph.known_contents import known_number
from ...protocol import Evaluator
from ...shapes import DataSymbolSource, ShapeSymbols
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from .representations import number_operand, number_value
from .symbolic_number import SymbolicNumberVariable, load_data_source

_DECISION = "decision by a number that depends on data"
_BINARY = frozenset({"add", "sub", "mul"})
_METHODS: dict[str, Callable[..., Any]] = {
    "__neg__": operator_module.neg,
    "__abs__": operator_module.abs,
}
_THE_SAME = frozenset({"__pos__", "__float__"})


@dataclass(frozen=True)
class Range:
    """Numbers from ``least`` to ``most``; ``below``: less than ``most``."""

    least: float
    most: float
    below: bool = False


class DataFloatVariable(SymbolicNumberVariable):
    """A float of which nothing is known: read at ``origin``, or computed from other numbers.

    ``origin`` is a place, or the function that computes it with its operands.  Only what gives a float
    for all floats, and never raises, is computed in the graph.
    """

    rank = 3

    def __init__(
        self,
        symbols: ShapeSymbols,
        value: Any,
        number_node: torch.fx.Node,
        origin: DataSymbolSource | tuple[Callable[..., Any], Sequence[Variable]],
    ) -> None:
        super().__init__(symbols, value, number_node)
        self.origin = origin
        self.bounds: Range | None = None

    def as_constant(self) -> Any:
        raise Unsupported("number that depends on data", repr(self))

    def truth(self, evaluator: Evaluator) -> bool:
        raise Unsupported(_DECISION, repr(self))

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name in _THE_SAME:
            return self
        if name in _METHODS:
            return _float(evaluator, self._symbols, _METHODS[name], [self])
        method = getattr(float, name, None)
        found = None if method is None else number_of_data(evaluator, method, [self, *arguments])
        if found is None or keywords:
            raise Unsupported("number that depends on data", f"{self!r}.{name}")
        return found

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        if operator in COMPARISONS:
            known = _known_comparison(COMPARISONS[operator], pair)
            if known is not None:
                return ConstantVariable(known)
            return DataBooleanVariable(COMPARISONS[operator], pair, None)
        return float_of_data(evaluator, self._symbols, operator, pair)

    def other_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if other.node is not None:
            return None  # what the graph computes takes the number as it is
        if other.python_type() in (str, bytes, types.NoneType):
            return None  # nor does a float know an operation with them
        raise Unsupported("number that depends on data", f"{operator} of {self!r}, {other!r}")

    def reconstruct(self, emitter: Emitter) -> None:
        if isinstance(self.origin, DataSymbolSource):
            load_data_source(emitter, self.origin)
        else:
            function, operands = self.origin
            emitter.load_call(function, *operands)

    def __repr__(self) -> str:
        return f"DataFloat({self.value})"


def float_of_data(
    evaluator: Evaluator, symbols: ShapeSymbols, operator: str, pair: tuple[Variable, Variable]
) -> Variable:
    """An operation on numbers, one of them a float, which gives a float whatever the data are."""
    if operator in _BINARY or (operator == "truediv" and _differs_from_zero(evaluator, pair[1])):
        return _float(evaluator, symbols, OPERATORS[operator], pair)
    found = number_of_data(evaluator, OPERATORS[operator], pair) if operator in OPERATORS else None
    if found is None:
        raise Unsupported("number that depends on data", f"{operator} of {pair}")
    return found


def _differs_from_zero(evaluator: Evaluator, divisor: Variable) -> bool:
    """Whether a number is not zero: whatever data are, as the call's numbers say, or as is assumed."""
    from .signs import is_positive

    if is_positive(divisor):
        return True
    if not isinstance(divisor, SymbolicNumberVariable):
        return divisor.is_constant() and divisor.as_constant() != 0
    told = decision(divisor)
    if told is divisor:
        told = comparison(divisor._symbols, "ne", (divisor, ConstantVariable(0)))
    return bool(told.as_constant()) if told.is_constant() else evaluator.assumed(told) is True


def _float(
    evaluator: Evaluator,
    symbols: ShapeSymbols,
    function: Callable[..., Any],
    operands: Sequence[Variable],
) -> Variable:
    from .later_numbers import float_of_later

    later = float_of_later(function, operands)
    return later or float_in_graph(evaluator, symbols, function, operands, function)


def float_in_graph(
    evaluator: Evaluator,
    symbols: ShapeSymbols,
    function: Callable[..., Any],
    operands: Sequence[Variable],
    in_graph: Callable[..., Any],
) -> DataFloatVariable:
    """What ``function`` gives, which is ``in_graph`` in the graph."""
    nodes = tuple(map(number_operand, operands))
    node = evaluator.graph.outermost.call_function(in_graph, nodes)
    value = node.meta["example_value"] = new_float(evaluator.graph.fake_mode)
    return DataFloatVariable(symbols, value, node, (function, tuple(operands)))


def number_of_data(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> Variable | None:
    """What a function gives of numbers that data gives, if it can be called on entry or after the graph."""
    from ..libraries.drawn_functions import called_on_entry
    from .integers_of_data import integer_of_float
    from .later_numbers import called_later

    found = called_on_entry(evaluator, function, arguments)
    if found is None and len(arguments) == 1:
        found = integer_of_float(evaluator, function, arguments[0])
    return called_later(evaluator, function, arguments) if found is None else found


COMPARISONS: dict[str, Callable[..., Any]] = {
    name: OPERATORS[name] for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


class DataBooleanVariable(Variable):
    """A comparison of numbers that only data decides; ``value`` is None where floats take part."""

    kind = bool

    def __init__(
        self, function: Callable[..., Any], operands: tuple[Variable, Variable], value: Any
    ) -> None:
        self.function = function
        self.operands = operands
        self.value = value

    def truth(self, evaluator: Evaluator) -> bool:
        if self.value is not None:
            known = [known_number(evaluator, number_value(operand)) for operand in self.operands]
            if all(number is not None for number in known):
                return bool(evaluator.graph.shapes.specialise(self.function(*known)))
        found = evaluator.assumed(self)
        if found is None:
            raise Unsupported(_DECISION, repr(self))
        return found

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(self.function, *self.operands)

    def __repr__(self) -> str:
        left, right = self.operands
        return f"{self.function.__name__}({left!r}, {right!r})"


def comparison(
    symbols: ShapeSymbols, name: str, pair: tuple[Variable, Variable]
) -> ConstantVariable | DataBooleanVariable:
    """A comparison of integers, decided if anything but data decides it."""
    value = COMPARISONS[name](*map(number_value, pair))
    if isinstance(value, torch.SymBool) and symbols.data:
        decided = symbols.decided(value)
        if decided is None:
            return DataBooleanVariable(COMPARISONS[name], pair, value)
        return ConstantVariable(decided)
    return ConstantVariable(bool(symbols.specialise(value)))


def depends_on_data(variable: Variable) -> bool:
    """Whether it is a number that only data gives."""
    if isinstance(variable, DataFloatVariable):
        return True
    return isinstance(variable, SymbolicNumberVariable) and bool(unbacked_symbols(variable.value))


def decision(variable: Variable) -> Variable:
    """The comparison with zero that the truth of a number is, where only data decides it.

    Anything else as it is.
    """
    zero = ConstantVariable(0)
    if isinstance(variable, DataFloatVariable):
        return DataBooleanVariable(operator.ne, (variable, zero), None)
    if not isinstance(variable, SymbolicNumberVariable) or not unbacked_symbols(variable.value):
        return variable
    return comparison(variable._symbols, "ne", (variable, zero))


# Comparisons whose outcome chance cannot change: of a number drawn from [0, 1) with one outside.
#
# ``if torch.rand([]) < layerdrop`` with a ``layerdrop`` of zero needs no branch: the number is drawn, as in
# eager, and never below zero.


def known_truth(node: torch.fx.Node) -> bool | None:
    """What the comparison ``node``, which nothing reads yet, always gives; None if it depends on data."""
    compare = _COMPARISONS.get(node.target)
    if compare is None or node.users or node.kwargs or len(node.args) != 2:
        return None
    left, right = map(_range, node.args)
    return None if left is None or right is None else compare(left, right)


def _known_comparison(function: Any, pair: tuple[Variable, Variable]) -> bool | None:
    """What a comparison of two floats always gives, one of them drawn; None if it depends on data."""
    compare = _COMPARISONS.get(function)
    left, right = map(_bounds, pair)
    return None if compare is None or left is None or right is None else compare(left, right)


def _bounds(number: Variable) -> Range | None:
    if isinstance(number, DataFloatVariable):
        return number.bounds
    is_plain = number.is_constant() and type(number.as_constant()) in (int, float)
    return Range(number.as_constant(), number.as_constant()) if is_plain else None


def _range(argument: Any) -> Range | None:
    if type(argument) in (int, float):
        return Range(argument, argument)
    if not isinstance(argument, torch.fx.Node) or argument.target is not torch.rand:
        return None
    is_plain = argument.kwargs.get("dtype") in (None, torch.float32, torch.float64)
    # Then none of its users writes to it.
    only_compared = all(user.target in _COMPARISONS for user in argument.users)
    return Range(0, 1, below=True) if is_plain and only_compared else None


def _is_less(left: Range, right: Range) -> bool | None:
    if left.least >= right.most:
        return False
    return True if left.most < right.least or (left.below and left.most == right.least) else None


def _is_at_most(left: Range, right: Range) -> bool | None:
    if left.least > right.most or (right.below and left.least == right.most):
        return False
    return True if left.most <= right.least else None


_COMPARISONS: dict[Any, Callable[[Range, Range], bool | None]] = {
    operator.lt: _is_less,
    operator.le: _is_at_most,
    operator.gt: lambda left, right: _is_less(right, left),
    operator.ge: lambda left, right: _is_at_most(right, left),
}
