"""Floats that Python makes of data and no graph has: ``round(loss.item(), 4)``, ``math.exp(loss.item())``.

Most are logged or kept.  They are made after the graph, where anyone reads them: so a function that raises
for some floats is one of these only where the graph has checked that it is given none of them.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...shapes import ShapeSymbols
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from .data_numbers import COMPARISONS, DataBooleanVariable, DataFloatVariable


class LaterFloatVariable(DataFloatVariable):
    """What ``function`` gives of ``operands``, a float, as the code after the graph computes it."""

    is_invariant = False  # it has no value that anything in the graph could compute with

    def __init__(
        self, symbols: ShapeSymbols, function: Callable[..., Any], operands: Sequence[Variable]
    ) -> None:
        self._symbols = symbols
        self.source = None
        self.quotient = None
        self.origin = function, operands
        self.bounds = None

    def python_type(self) -> type:
        return float

    def counted(self) -> None:
        return None

    @property
    def value(self) -> Any:
        raise Unsupported("number that depends on data", f"{self!r} in the graph")

    @property
    def number_node(self) -> Any:  # type: ignore[override]
        return self.value

    def __repr__(self) -> str:
        assert isinstance(self.origin, tuple)
        function, operands = self.origin
        return f"{getattr(function, '__name__', function)}({', '.join(map(repr, operands))})"


def float_of_later(
    function: Callable[..., Any], operands: Sequence[Variable]
) -> LaterFloatVariable | None:
    """What a function that never raises gives of numbers, of which one is not there before the graph ends.

    None where all are, or where the result may be an operand that is no float.
    """
    later = next((part for part in operands if isinstance(part, LaterFloatVariable)), None)
    gives_operand = function in (builtins.min, builtins.max)
    if gives_operand and not all(part.python_type() is float for part in operands):
        return None
    return None if later is None else LaterFloatVariable(later._symbols, function, operands)


def called_later(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> Variable | None:
    """What ``function``, which has no effect, gives of a float that data gives; None of other arguments."""
    first, *rest = arguments
    graph = evaluator.graph
    if not isinstance(first, DataFloatVariable) or graph.is_in_region or graph.transforms.active:
        return None
    if not all(argument.is_constant() for argument in rest):
        return None
    if function in _QUESTIONS and not rest:
        return _QUESTIONS[function](evaluator, first)
    limit = _limit(function, [argument.as_constant() for argument in rest])
    if limit is None:
        return None
    if limit is not _NONE:
        compared = first.call_method(evaluator, "__abs__", [], {}) if limit[0] == "abs" else first
        pair = compared, ConstantVariable(limit[2])
        if evaluator.assumed(DataBooleanVariable(COMPARISONS[limit[1]], pair, None)) is not True:
            described = f"{getattr(function, '__name__', function)} of {first!r}"
            raise Unsupported("number that depends on data", described)
    return LaterFloatVariable(first._symbols, function, arguments)


_Limit = tuple[str, str, float]
"""What a float, or its absolute value, has to be compared with, so that a function of it does not raise."""
_NONE: _Limit = ("", "", 0.0)


def _limit(function: Callable[..., Any], rest: list[Any]) -> _Limit | None:
    """The limit of the first argument, of which a float is made; None for a function that is not known."""
    if not rest:
        return _LIMITS.get(function)
    if len(rest) > 1 or type(rest[0]) not in (int, float):
        return None
    (second,) = rest
    if function in (builtins.round, float.__round__):
        return _NONE if type(second) is int and second >= 0 else None
    if function in (operator.floordiv, operator.mod):
        return _NONE if second != 0 else None
    return _POWERS.get(second) if function is operator.pow else None


_POSITIVE: _Limit = ("", "gt", 0.0)
_LIMITS: dict[Callable[..., Any], _Limit] = {
    math.log: _POSITIVE, math.log2: _POSITIVE, math.log10: _POSITIVE, math.log1p: ("", "gt", -1.0),
    math.sqrt: ("", "ge", 0.0), math.exp: ("", "lt", 709.0), math.expm1: ("", "lt", 709.0),
    **dict.fromkeys((math.sin, math.cos, math.tan), ("abs", "lt", math.inf)),
    **dict.fromkeys((math.tanh, math.atan, math.erf, math.fabs, math.degrees, math.radians), _NONE),
}  # fmt: skip
_POWERS: dict[float, _Limit] = {
    2: ("abs", "lt", 1e150),
    3: ("abs", "lt", 1e100),
    0.5: ("", "ge", 0.0),
}


def _compared(name: str, absolute: bool, bound: float | None) -> Callable[..., Variable]:
    """A question about a float: how it, or its absolute value, compares with ``bound``, or with itself."""

    def ask(evaluator: Evaluator, value: DataFloatVariable) -> Variable:
        left = value.call_method(evaluator, "__abs__", [], {}) if absolute else value
        right = value if bound is None else ConstantVariable(bound)
        return DataBooleanVariable(COMPARISONS[name], (left, right), None)

    return ask


_QUESTIONS: dict[Callable[..., Any], Callable[..., Variable]] = {
    math.isnan: _compared("ne", False, None),
    math.isinf: _compared("eq", True, math.inf),
    math.isfinite: _compared("lt", True, math.inf),
}
FUNCTIONS_OF_FLOATS = frozenset((*_LIMITS, *_QUESTIONS))
"""Functions of one number, which they take for a float."""
