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

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...shapes import DataSymbolSource, ShapeSymbols
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from .data_numbers import COMPARISONS, DataBooleanVariable, DataFloatVariable, float_in_graph
from .signs import is_never_negative


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
    graph = evaluator.graph
    place = next((n for n, a in enumerate(arguments) if isinstance(a, DataFloatVariable)), None)
    if place is None or graph.is_in_region or graph.transforms.active:
        return None
    number = arguments[place]
    assert isinstance(number, DataFloatVariable)
    known: list[Any] = [*arguments[:place], *arguments[place + 1 :]]
    if not all(argument.is_constant() for argument in known):
        return None
    known = [argument.as_constant() for argument in known]
    if place == 0 and function in _QUESTIONS and not known:
        return _QUESTIONS[function](evaluator, number)
    if place == 0:
        limits = _limits(function, known)
    else:
        limits = _limits_of_exponent(*known) if function is operator.pow else None
    if limits is None:
        return None
    if not all(_is_within(evaluator, number, limit) for limit in limits):
        described = f"{getattr(function, '__name__', function)} of {number!r}"
        raise Unsupported("number that depends on data", described)
    if function in _GRAPH_FUNCTIONS and not isinstance(number, LaterFloatVariable):
        in_graph = _GRAPH_FUNCTIONS[function]
        return float_in_graph(evaluator, number._symbols, function, arguments, in_graph)
    return LaterFloatVariable(number._symbols, function, arguments)


_GRAPH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    math.sqrt: torch.sym_sqrt,
    operator.pow: operator.pow,
}
"""Functions whose results the graph can compute with, and what it has in their places."""

_Limit = tuple[str, str, float]
"""What a float, or its absolute value, has to be compared with, so that a function of it does not raise."""


def _is_within(evaluator: Evaluator, number: DataFloatVariable, limit: _Limit) -> bool:
    """Whether a number is within a limit: it always is, or in this call, which the graph checks."""
    which, comparison, bound = limit
    if which == "abs" and comparison == "lt" and bound >= _most(number):
        return True  # or it is infinite or NaN, as its powers are
    if limit is _NOT_NEGATIVE and is_never_negative(number):
        return True
    compared = number.call_method(evaluator, "__abs__", [], {}) if which == "abs" else number
    pair = compared, ConstantVariable(bound)
    return evaluator.assumed(DataBooleanVariable(COMPARISONS[comparison], pair, None)) is True


def _limits(function: Callable[..., Any], rest: list[Any]) -> Sequence[_Limit] | None:
    """The limits of the first argument, of which a float is made; None for a function that is not known."""
    if not rest:
        return _LIMITS.get(function)
    if len(rest) > 1 or type(rest[0]) not in (int, float):
        return None
    (second,) = rest
    if function in (builtins.round, float.__round__):
        return () if type(second) is int and second >= 0 else None
    if function in (operator.floordiv, operator.mod):
        return () if second != 0 else None
    return _limits_of_base(second) if function is operator.pow else None


def _most(number: DataFloatVariable) -> float:
    """What no finite value of a number is beyond, as far as the tensor that it is read from says."""
    if not isinstance(number.origin, DataSymbolSource) or number.origin.dimension is not None:
        return math.inf
    return float(torch.finfo(number.origin.tensor.fake.dtype).max)


_EXPONENT = 1000.0  # a power of two that no float64 has to be rounded for


def _limits_of_base(exponent: float) -> Sequence[_Limit] | None:
    """The limits of what is raised to a constant power: the result is a float, and none too large."""
    if not math.isfinite(exponent):
        return None
    if exponent == 0:
        return ()
    bound = 2.0 ** max(-_EXPONENT, min(_EXPONENT, _EXPONENT / exponent))
    if exponent == int(exponent):
        return (("abs", "lt" if exponent > 0 else "gt", bound),)
    if exponent < 0:
        return (("", "gt", bound),)
    return (_NOT_NEGATIVE,) if exponent < 1 else (_NOT_NEGATIVE, ("", "lt", bound))


def _limits_of_exponent(base: Any) -> Sequence[_Limit] | None:
    """The limits of what a positive constant is raised to."""
    if type(base) not in (int, float) or not 0 < base < math.inf:
        return None
    rate = math.log2(base)
    return (("", "lt" if rate > 0 else "gt", _EXPONENT / rate),) if rate else ()


_NOT_NEGATIVE: _Limit = ("", "ge", 0.0)
_POSITIVE: _Limit = ("", "gt", 0.0)
_LIMITS: dict[Callable[..., Any], Sequence[_Limit]] = {
    **dict.fromkeys((math.log, math.log2, math.log10), (_POSITIVE,)), math.log1p: (("", "gt", -1.0),),
    math.sqrt: (_NOT_NEGATIVE,), math.exp: (("", "lt", 709.0),), math.expm1: (("", "lt", 709.0),),
    **dict.fromkeys((math.sin, math.cos, math.tan), (("abs", "lt", math.inf),)),
    **dict.fromkeys((math.tanh, math.atan, math.erf, math.fabs, math.degrees, math.radians), ()),
}  # fmt: skip


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
