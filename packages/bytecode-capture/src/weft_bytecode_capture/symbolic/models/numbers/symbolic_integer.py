"""Integers that a graph computes: the counter of a loop that is evaluated once for all iterations."""

from __future__ import annotations

import operator as operator_module
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...._torch.symbols import GuardOnDataDependentSymNode
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.python_protocols import COMPARISONS
from ..containers.slices import SliceVariable
from ..containers.unread_tuples import is_tuple
from .representations import NumberVariable, number_operand, number_value

_ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod"})


class SymbolicIntegerVariable(NumberVariable):
    """An integer that differs by iteration; ``value`` knows its bounds, ``node`` gives it in the graph."""

    kind = int
    rank = 4
    node: torch.fx.Node

    def __init__(self, node: torch.fx.Node, value: torch.SymInt) -> None:
        self.node = self.number_node = node
        self.value = value

    def truth(self, evaluator: Evaluator) -> bool:
        return decide(self.value != 0, repr(self))

    def takes(self, other: Variable) -> bool:
        return other.is_constant() and type(other.as_constant()) in (int, bool, float)

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        from .tensor_number import number_operation

        operands = [integer_operand(variable) for variable in pair]
        known = [operand for operand in operands if operand is not None]
        if operator == "truediv" or len(known) < len(pair):
            return number_operation(evaluator, operator, pair)  # no integer of the graph
        (first, left), (second, right) = known
        if operator in COMPARISONS:
            decided = decided_or_none(OPERATORS[operator](left, right))
            if decided is None:
                return number_operation(evaluator, operator, pair)
            return ConstantVariable(decided)
        if operator not in _ARITHMETIC:
            raise Unsupported("arithmetic of a loop's counter", f"{operator} of {self!r}")
        function = OPERATORS[operator]
        return integer_result(evaluator, function, (first, second), function(left, right))

    def other_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if other.is_constant() and isinstance(other.as_constant(), complex):
            raise Unsupported("arithmetic of a loop's counter", f"{operator} with {other!r}")
        return None

    def is_never_zero(self) -> bool:
        """Whether it is another number than 0 in every iteration."""
        return decided_or_none(self.value != 0) is True

    def is_never_negative(self) -> bool:
        """Whether it is at least 0 in every iteration."""
        return decided_or_none(self.value >= 0) is True

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__neg__":
            return integer_result(evaluator, operator_module.neg, (self.node,), -self.value)
        if name == "__pos__":
            return self
        raise Unsupported("use of a loop's counter as a number", f"{self!r}.{name}")

    def __repr__(self) -> str:
        return f"Integer({self.node.name}: {self.value})"


@dataclass(frozen=True)
class LoopCounter:
    """The counter of a loop that is kept, within ``least`` and ``greatest``.

    ``is_size``: it is a size that differs by iteration.
    """

    variable: SymbolicIntegerVariable
    least: int | torch.SymInt
    greatest: int | torch.SymInt
    is_size: bool = False


def integer_operand(variable: Variable) -> tuple[Any, Any] | None:
    """An integer as an argument of a node, and as torch computes with it; None for other values."""
    value = number_value(variable) if isinstance(variable, NumberVariable) else None
    if isinstance(value, torch.SymInt):
        return number_operand(variable), value
    if variable.is_constant() and type(variable.as_constant()) is int:
        return variable.as_constant(), variable.as_constant()
    return None


def integer_result(
    evaluator: Evaluator, function: Any, operands: tuple[Any, ...], value: Any
) -> Variable:
    """The variable of ``function(*operands)``, a node of the graph unless it is a number."""
    if isinstance(value, int):
        return ConstantVariable(value)
    node = evaluator.graph.graph.call_function(function, operands)
    node.meta["example_value"] = value
    return SymbolicIntegerVariable(node, value)


def decided_or_none(value: Any) -> bool | None:
    """A comparison's outcome; None if iterations differ in it."""
    try:
        return bool(value)
    except GuardOnDataDependentSymNode:
        return None


def decide(value: Any, what: str) -> bool:
    """A comparison that has the same outcome in every iteration."""
    decided = decided_or_none(value)
    if decided is None:
        raise Unsupported("decision by a loop's counter", what)
    return decided


def has_symbolic_integer(key: Variable) -> bool:
    """Whether a subscript is, or contains, a symbolic integer."""
    if isinstance(key, SymbolicIntegerVariable):
        return True
    if isinstance(key, SliceVariable):
        return any(map(has_symbolic_integer, key.parts))
    return is_tuple(key) and any(map(has_symbolic_integer, key._items))
