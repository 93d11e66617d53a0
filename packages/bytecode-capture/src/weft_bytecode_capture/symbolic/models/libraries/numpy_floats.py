"""Floats of NumPy that differ from call to call: a momentum or a learning rate out of a schedule."""

from __future__ import annotations

import math

import numpy
from weft_guards import ArgumentSource, Source, TypeIs

from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ...protocol import Evaluator
from ...shapes import ShapeSymbols
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable, register_special
from ..builtins.methods import BuiltinMethodVariable
from ..numbers.symbolic_float import SymbolicFloatVariable, current_number

_BINARY = frozenset({"add", "sub", "mul", "truediv", "pow"})
_PLAIN = frozenset({"item", "__float__"})
_OWN = frozenset({"__neg__", "__abs__"})


class NumPyFloatVariable(SymbolicFloatVariable):
    """A float64 that varies: a float whose results are float64 too."""

    rank = 3

    @staticmethod
    def of(number: SymbolicFloatVariable, symbols: ShapeSymbols) -> NumPyFloatVariable:
        return NumPyFloatVariable(
            symbols, number.value, number.number_node, number.operand, number.number
        )

    def python_type(self) -> type:
        return numpy.float64

    def as_constant(self) -> float:
        return numpy.float64(super().as_constant())

    def plain(self) -> SymbolicFloatVariable:
        """The number as Python's float."""
        return SymbolicFloatVariable(
            self._symbols, self.value, self.number_node, self.operand, self.number
        )

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _PLAIN:
            return BuiltinMethodVariable(self, name)
        return self.specialised().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name in _PLAIN and not arguments and not keywords:
            return self.plain()
        if name in _OWN:
            return self._own(evaluator, self.plain().call_method(evaluator, name, [], {}))
        return self.specialised().call_method(evaluator, name, arguments, keywords)

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        left, right = map(_as_plain, pair)
        if operator in _BINARY and _is_finite(operator, left, right):
            found = self.plain().operation(evaluator, operator, (left, right))
            return None if found is None else self._own(evaluator, found)
        if operator in ("lt", "le", "eq", "ne", "gt", "ge"):
            return evaluator.wrap_result(numpy.bool_(self._compare(operator, (left, right))))
        known = [v.specialised() if isinstance(v, SymbolicFloatVariable) else v for v in pair]
        return evaluator.binary_operation(operator, *known)

    def _own(self, evaluator: Evaluator, found: Variable) -> Variable:
        if isinstance(found, SymbolicFloatVariable):
            return NumPyFloatVariable.of(found, self._symbols)
        return evaluator.wrap_result(numpy.float64(found.as_constant()))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(numpy.float64)
        super().reconstruct(emitter)
        emitter.call(1)

    def __repr__(self) -> str:
        return f"NumPyFloat({self.value}, now {self.number})"


def _as_plain(variable: Variable) -> Variable:
    if isinstance(variable, NumPyFloatVariable):
        return variable.plain()
    value = getattr(variable, "value", None)
    return ConstantVariable(float(value)) if type(value) is numpy.float64 else variable


def _is_finite(operator: str, left: Variable, right: Variable) -> bool:
    """Whether NumPy gives what Python gives, which raises or makes a complex number of others."""
    with numpy.errstate(all="ignore"):
        found = OPERATORS[operator](numpy.float64(current_number(left)), current_number(right))
    return math.isfinite(found)


@register_special(numpy.float64, "number from outside")
def _from_outside(evaluator: Evaluator, value: numpy.float64, source: Source) -> Variable | None:
    """The variable of a scalar that has been another before; None of one that code is compiled for."""
    shapes = evaluator.state.shapes
    place = ConvertedSource(source, float)
    number = shapes.number(float(value), place, isinstance(source, ArgumentSource))
    if type(number) is float:
        return None
    evaluator.guard(source, TypeIs(numpy.float64))
    found = evaluator.graph.add_number(number, place)
    assert isinstance(found, SymbolicFloatVariable)
    return NumPyFloatVariable.of(found, shapes)
