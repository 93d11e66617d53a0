"""Integers and floats that differ from call to call: sizes, and numbers that are passed."""

from __future__ import annotations

import itertools
import operator as operator_module
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx
from weft_guards import Quantity, Source, SymbolSource, expression_function

from ...._torch.symbols import expression_of, unbacked_symbols
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...shapes import DataSymbolSource, ShapeSymbols
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.keys import HashedKey
from ...variables.python_protocols import COMPARISONS
from ..builtins.methods import BuiltinMethodVariable
from .quotients import ROUNDINGS, Quotient, quotient
from .representations import Counted, NumberVariable, number_operand, number_value

_ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "truediv", "pow"})
_DIVISIONS = frozenset({"floordiv", "mod", "truediv"})
_MAX_EXPRESSION = 60
"""Nodes of an expression that is computed with.  One that reads itself twice a step doubles each time."""

# Methods without arguments, by what computes them on a symbolic number.
_UNARY: dict[str, Callable[[Any], Any]] = {
    "__neg__": operator_module.neg,
    "__pos__": operator_module.pos,
    "__float__": torch.sym_float,
}

# Methods that programs call by name.
_METHODS = frozenset(("bit_count", "bit_length", "conjugate", "is_integer"))


class SymbolicNumberVariable(NumberVariable):
    """An int or float that the sizes and numbers of a call determine.

    Arithmetic gives further symbolic numbers, a comparison is decided as it falls now and guarded.  What
    needs the number itself gets it, and then code is compiled for this number alone.
    """

    rank = 1
    is_invariant = True

    def __init__(
        self,
        symbols: ShapeSymbols,
        value: Any,
        number_node: torch.fx.Node,
        source: Source | None = None,
    ) -> None:
        self._symbols = symbols
        self.value = value  # a torch.SymInt or torch.SymFloat
        self.number_node = number_node
        self.source = source
        self.quotient: Quotient | None = None  # a float that is one of integers

    def python_type(self) -> type:
        return int if isinstance(self.value, torch.SymInt) else float

    def as_constant(self) -> Any:
        return self._symbols.specialise(self.value)

    def counted(self) -> Counted | None:
        if not isinstance(self.value, torch.SymInt):
            return None
        expression, now = expression_of(self.value), self.value.node.hint
        if not isinstance(now, int) or len(expression.free_symbols) != 1:
            return None
        (symbol,) = expression.free_symbols
        symbol_source, offset = self._symbols.symbol_source(symbol), expression - symbol
        if (
            not isinstance(symbol_source, SymbolSource)
            or symbol_source.quantity is not Quantity.VALUE
        ):
            return None
        return Counted(symbol_source.source, int(offset), now) if offset.is_Integer else None

    def specialised(self) -> ConstantVariable:
        """The number as a constant, for this number alone."""
        return ConstantVariable(self.as_constant())

    def truth(self, evaluator: Evaluator) -> bool:
        from .data_numbers import comparison

        return comparison(self._symbols, "ne", (self, ConstantVariable(0))).truth(evaluator)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return HashedKey(self.specialised(), (self.as_constant(),))

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if other.is_constant() and type(other.as_constant()) is not self.python_type():
            return False
        raise Unsupported("identity of numbers", f"{self!r} is {other!r}")

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _METHODS:
            return BuiltinMethodVariable(self, name)
        return self.specialised().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__abs__":
            positive = self.binary_operation(evaluator, "ge", ConstantVariable(0), False)
            assert positive is not None
            name = "__pos__" if positive.truth(evaluator) else "__neg__"
        if name in _UNARY:
            return self._computed(evaluator, _UNARY[name], [self])
        if name in ROUNDINGS and not arguments and not keywords:
            whole = self._rounded(evaluator, ROUNDINGS[name])
            if whole is not None:
                return whole
        return self._called(evaluator, name, arguments, keywords)

    def _called(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        """What a method of Python's gives: computed in each call, or for this number alone."""
        from .called_numbers import number_of_each_call

        method = getattr(self.python_type(), name, None)
        if method is not None and not keywords:
            found = number_of_each_call(evaluator, method, [self, *arguments])
            if found is not None:
                return found
        return self.specialised().call_method(evaluator, name, arguments, keywords)

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        from .data_numbers import comparison, depends_on_data, float_of_data
        from .symbolic_float import float_computation

        if operator in COMPARISONS:
            return comparison(self._symbols, operator, pair)
        if operator in ("add", "sub", "mul", "truediv") and (
            any(map(_is_computed_float, pair))
            or (operator in ("mul", "truediv") and any(map(_is_float_zero, pair)))
        ):
            # SymPy reorders a second operation on floats, and its zero has no sign.
            if any(map(depends_on_data, pair)):
                return float_of_data(evaluator, self._symbols, operator, pair)
            return float_computation(evaluator, self._symbols, operator, pair)
        is_computed = operator in _ARITHMETIC and not any(map(_is_large, pair))
        if is_computed and self._is_total(evaluator, operator, *pair):
            result = self._computed(evaluator, OPERATORS[operator], list(pair))
            if isinstance(result, SymbolicNumberVariable):
                result.quotient = quotient(operator, pair)
            return result
        if operator == "pow" and any(p.python_type() is float for p in pair):
            return float_computation(evaluator, self._symbols, operator, pair)
        return operation_on_these(evaluator, operator, pair)

    def other_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if other.node is not None:
            return None  # what the graph computes takes the number as it is
        if operator == "mod" and reflected and other.python_type() is str:
            return None  # the text is what formats
        plain = operator[1:] if operator[0] == "i" and operator[1:] in OPERATORS else operator
        pair: tuple[Variable, Variable] = (other, self) if reflected else (self, other)
        return operation_on_these(evaluator, plain, pair)

    def holds(self, comparison: str, bound: int) -> bool:
        """Whether a comparison holds now, which is guarded."""
        return bool(self._symbols.specialise(OPERATORS[comparison](self.value, bound)))

    def computation(self, evaluator: Evaluator, operation: str) -> Variable:
        """``operation``, one of a single operand that gives a float, of this number."""
        from .symbolic_float import float_computation

        return float_computation(evaluator, self._symbols, operation, [self])

    def _rounded(self, evaluator: Evaluator, direction: str) -> Variable | None:
        """The whole number beside this one; None where that is known for this number alone."""
        if isinstance(self.value, torch.SymInt):
            return self
        return self.quotient.rounded(evaluator, direction) if self.quotient is not None else None

    def _is_total(
        self, evaluator: Evaluator, operator: str, left: Variable, right: Variable
    ) -> bool:
        """Whether an operation gives a number of one type, and no exception, for all that is guarded."""
        from ...graph.data_dependence import require_compared

        if operator == "truediv" and self._may_check(evaluator, right):
            require_compared(evaluator.graph, operator_module.ne, right, ConstantVariable(0))
            return True
        if operator in _DIVISIONS:
            return not self._symbols.specialise(number_value(right) == 0)
        if operator != "pow":
            return True
        if isinstance(right, SymbolicNumberVariable):
            return False
        exponent = right.as_constant()
        if isinstance(exponent, int):
            return exponent >= 0
        return bool(self._symbols.specialise(number_value(left) > 0))

    def _may_check(self, evaluator: Evaluator, divisor: Variable) -> bool:
        """Whether only data says what an integer is, and the graph can find out that it is a zero."""
        is_integer = isinstance(divisor, SymbolicNumberVariable) and divisor.python_type() is int
        undecided = is_integer and bool(unbacked_symbols(divisor.value))  # type: ignore[attr-defined]
        return undecided and not evaluator.graph.is_in_region

    def _computed(
        self, evaluator: Evaluator, function: Callable[..., Any], operands: list[Variable]
    ) -> Variable:
        value = evaluator.graph.computed(evaluator, function, [*map(number_value, operands)])
        nodes = tuple(map(number_operand, operands))
        return evaluator.graph.number(
            value, lambda graph: graph.call_function(function, nodes), None
        )

    def reconstruct(self, emitter: Emitter) -> None:
        """Compute the number anew from where its symbols are read."""
        expression = expression_of(self.value)
        if self.python_type() is int:
            load_number(emitter, expression, self._symbols.symbol_source)
            return
        # What SymPy makes of a float may be an integer, 0 of 0.0 / n for a known n.
        emitter.load_callable(float)
        load_number(emitter, expression, self._symbols.symbol_source)
        emitter.call(1)

    def __repr__(self) -> str:
        return f"SymbolicNumber({self.value})"


def operation_on_these(
    evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
) -> Variable:
    """An operation that no graph has: computed in each call, or else for these very numbers."""
    from .called_numbers import number_of_each_call

    if operator in OPERATORS:
        found = number_of_each_call(evaluator, OPERATORS[operator], pair)
        if found is not None:
            return found
    known = [v.specialised() if isinstance(v, SymbolicNumberVariable) else v for v in pair]
    return evaluator.binary_operation(operator, *known)


def _is_large(variable: Variable) -> bool:
    if not isinstance(variable, SymbolicNumberVariable):
        return False
    nodes = sympy.preorder_traversal(expression_of(variable.value))
    return next(itertools.islice(nodes, _MAX_EXPRESSION, None), None) is not None


def _is_computed_float(variable: Variable) -> bool:
    return isinstance(variable, SymbolicNumberVariable) and variable.python_type() is float


def _is_float_zero(variable: Variable) -> bool:
    if isinstance(variable, SymbolicNumberVariable):
        return False
    number = variable.as_constant()
    return isinstance(number, float) and number == 0


def load_number(
    emitter: Emitter, expression: Any, source_of: Callable[[Any], SymbolSource | DataSymbolSource]
) -> None:
    """Compute an expression's value from where its symbols are read."""
    symbols = tuple(sorted(expression.free_symbols, key=str))
    if (expression,) == symbols:
        _load_symbol_source(emitter, source_of(symbols[0]))
        return
    emitter.load_callable(expression_function(expression, symbols))
    for symbol in symbols:
        _load_symbol_source(emitter, source_of(symbol))
    emitter.call(len(symbols))


def load_data_source(emitter: Emitter, symbol_source: DataSymbolSource) -> None:
    """Push a number that the graph gives in a tensor, or as a size of one."""
    emitter.load_variable(symbol_source.tensor)
    emitter.load_attribute("item" if symbol_source.dimension is None else "size")
    emitter.prepare_call()
    if symbol_source.dimension is not None:
        emitter.load_constant(symbol_source.dimension)
    emitter.call(0 if symbol_source.dimension is None else 1)


def _load_symbol_source(emitter: Emitter, symbol_source: SymbolSource | DataSymbolSource) -> None:
    if isinstance(symbol_source, DataSymbolSource):
        load_data_source(emitter, symbol_source)
        return
    if symbol_source.quantity is Quantity.VALUE:
        emitter.load_source(symbol_source.source)
        return
    emitter.load_given(symbol_source.source)
    emitter.load_attribute(symbol_source.quantity.value)  # tensor.size or tensor.stride
    emitter.prepare_call()
    emitter.load_constant(symbol_source.dimension)
    emitter.call(1)
