"""Floats that differ from call to call, such as a learning rate, and what is computed from them.

Arithmetic on them is recorded operation by operation: each result is a symbol of its own, and never a SymPy
expression, whose terms would be reordered (``weft_guards.computations``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from weft_guards import (
    ARITHMETIC,
    COMPARISONS,
    Computation,
    EqualsConstant,
    IsComputable,
    NumbersCompare,
    Operand,
    SymbolSource,
)

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...shapes import ShapeSymbols
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from .representations import number_operand
from .symbolic_number import SymbolicNumberVariable, load_number, operation_on_these

_BINARY = frozenset({"add", "sub", "mul", "truediv", "pow"})
# Operations that give a float whatever finite floats they are given; of others that has to be guarded.
_TOTAL = frozenset({"add", "sub", "mul", "neg", "abs"})
_METHODS = {"__neg__": "neg", "__abs__": "abs"}
_THE_SAME = frozenset({"__pos__", "__float__"})
# Functions of a graph that take symbolic floats too, where Python's own do not.
_GRAPH_FUNCTIONS: dict[str, Callable[..., Any]] = {"sqrt": torch.sym_sqrt}


class SymbolicFloatVariable(SymbolicNumberVariable):
    """A float that varies; ``number`` is what it is now, ``operand`` says where it comes from."""

    rank = 2

    def __init__(
        self,
        symbols: ShapeSymbols,
        value: Any,
        number_node: torch.fx.Node,
        operand: Operand,
        number: float,
    ) -> None:
        super().__init__(symbols, value, number_node)
        self.operand = operand
        self.number = number

    def as_constant(self) -> float:
        if isinstance(self.operand, SymbolSource):
            self._symbols.guard(self.operand.source, EqualsConstant(self.number))
        else:
            self._symbols.guard_numbers(NumbersCompare("is", self.operand, self.number, True))
        return self.number

    def truth(self, evaluator: Evaluator) -> bool:
        return self._compare("ne", (self, ConstantVariable(0.0)))

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name in _THE_SAME:
            return self
        if name in _METHODS:
            return self.computation(evaluator, _METHODS[name])
        return self._called(evaluator, name, arguments, keywords)

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        if operator in COMPARISONS:
            return ConstantVariable(self._compare(operator, pair))
        if operator not in _BINARY:
            return operation_on_these(evaluator, operator, pair)
        return float_computation(evaluator, self._symbols, operator, pair)

    def _compare(self, comparison: str, pair: Sequence[Variable]) -> bool:
        outcome = COMPARISONS[comparison][0](*map(current_number, pair))
        left, right = (float_operand(self._symbols, variable) for variable in pair)
        self._symbols.guard_numbers(NumbersCompare(comparison, left, right, outcome))
        return outcome

    def reconstruct(self, emitter: Emitter) -> None:
        """Compute the number anew from where its parts are read."""
        _load_operand(emitter, self.operand)

    def __repr__(self) -> str:
        return f"SymbolicFloat({self.value}, now {self.number})"


def float_computation(
    evaluator: Evaluator, symbols: ShapeSymbols, operation: str, operands: Sequence[Variable]
) -> Variable:
    """The variable of ``operation`` on numbers of which one at least varies.

    Where that gives no finite float now, it is done on these very numbers: its exception is the program's.
    """
    function = ARITHMETIC[operation][0]
    numbers = [current_number(operand) for operand in operands]
    try:
        number = function(*numbers)
    except (ArithmeticError, ValueError):
        number = None
    if type(number) is not float or not math.isfinite(number):
        constants = [operand.as_constant() for operand in operands]
        return evaluator.wrap_constant(evaluator.pure(function, *constants))
    computation = Computation(operation, tuple(float_operand(symbols, v) for v in operands))
    if operation not in _TOTAL:
        symbols.guard_numbers(IsComputable(computation))
    nodes = tuple(map(number_operand, operands))
    target = _GRAPH_FUNCTIONS.get(operation, function)
    return evaluator.graph.number(
        symbols.computed(computation, number),
        lambda graph: graph.call_function(target, nodes),
        None,
    )


def current_number(variable: Variable) -> int | float:
    """What a number is now, which nothing may be concluded from; refused where only data says it."""
    if isinstance(variable, SymbolicFloatVariable):
        return variable.number
    if isinstance(variable, SymbolicNumberVariable):
        hint: int | float | None = variable.value.node.hint
        if hint is not None:
            return hint
    constant: int | float = variable.as_constant()
    return constant


def float_operand(symbols: ShapeSymbols, variable: Variable) -> Operand:
    """A number as a computation's operand."""
    if isinstance(variable, SymbolicFloatVariable):
        return variable.operand
    if isinstance(variable, SymbolicNumberVariable):
        return symbols.size_expression(variable.value)
    constant: int | float = variable.as_constant()
    return constant


def _load_operand(emitter: Emitter, operand: Operand) -> None:
    if isinstance(operand, Computation):
        emitter.load_callable(ARITHMETIC[operand.operation][0])
        for part in operand.operands:
            _load_operand(emitter, part)
        emitter.call(len(operand.operands))
    elif isinstance(operand, int | float):
        emitter.load_constant(operand)
    elif isinstance(operand, SymbolSource):
        emitter.load_source(operand.source)
    else:
        load_number(emitter, operand.expression, dict(operand.symbol_sources).__getitem__)
