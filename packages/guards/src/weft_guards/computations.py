"""Floats of a call and what is computed from them, operation by operation as Python computes.

SymPy's numbers are real numbers: it reorders sums, and a square is never negative to it.  A floating-point
number may be rounded, NaN or infinite, so that what depends on one is not written as a SymPy expression but
as a :class:`Computation`, whose value is Python's to the last bit.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import sympy

from .constants import constant_key, constants_equal
from .sources import Scope, Source
from .symbol_sources import SymbolSource, expression_function, expression_text

ARITHMETIC: Final[Mapping[str, tuple[Callable[..., Any], str]]] = {
    "add": (operator.add, "({} + {})"),
    "sub": (operator.sub, "({} - {})"),
    "mul": (operator.mul, "({} * {})"),
    "truediv": (operator.truediv, "({} / {})"),
    "pow": (operator.pow, "({} ** {})"),
    "neg": (operator.neg, "(-{})"),
    "abs": (operator.abs, "abs({})"),
    "sqrt": (math.sqrt, "math.sqrt({})"),
}
"""What a computation does, by name: the function, and how its text is made from its operands'."""

COMPARISONS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "lt": (operator.lt, "{} < {}"),
    "le": (operator.le, "{} <= {}"),
    "gt": (operator.gt, "{} > {}"),
    "ge": (operator.ge, "{} >= {}"),
    "eq": (operator.eq, "{} == {}"),
    "ne": (operator.ne, "{} != {}"),
    "is": (constants_equal, "{} is exactly {}"),
}


@dataclass(frozen=True)
class SizeExpression:
    """A SymPy expression over the numbers of ``symbol_sources``, such as ``n / 2`` of a size ``n``."""

    expression: sympy.Expr
    symbol_sources: tuple[tuple[sympy.Symbol, SymbolSource], ...]

    def name(self) -> str:
        return expression_text(
            self.expression, {s: source.name() for s, source in self.symbol_sources}
        )

    def sources(self) -> tuple[Source, ...]:
        return tuple(source.source for _, source in self.symbol_sources)

    def read(self, scope: Scope) -> int | float:
        number: int | float = self._function(
            *(source.read(scope) for _, source in self.symbol_sources)
        )
        return number

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        return expression_function(self.expression, [symbol for symbol, _ in self.symbol_sources])


@dataclass(frozen=True, eq=False)
class Computation:
    """``operation``, a name in :data:`ARITHMETIC`, of ``operands``, of which one at least is a float.

    Equal computations have the same operations on the same sources and constants; 0.0 and -0.0 differ.

    :raises ValueError: there is no such operation.
    """

    operation: str
    operands: tuple[Operand, ...]

    def __post_init__(self) -> None:
        if self.operation not in ARITHMETIC:
            raise ValueError(f"no arithmetic is called {self.operation!r}")

    def name(self) -> str:
        """As a user would write it: ``(L['rate'] * 2.0)``."""
        return ARITHMETIC[self.operation][1].format(*map(operand_text, self.operands))

    def sources(self) -> tuple[Source, ...]:
        """The sources of all numbers that are read, without repetition."""
        return operand_sources(self.operands)

    def read(self, scope: Scope) -> float:
        """The number now.

        :raises TypeError: the result is no float (a root of a negative number, as Python has it).
        :raises ArithmeticError, ValueError: as the operation does.
        """
        function = ARITHMETIC[self.operation][0]
        number = function(*(read_operand(operand, scope) for operand in self.operands))
        if type(number) is not float:
            raise TypeError(f"{self.name()} is {number}, not a float")
        return number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computation) and operand_key(self) == operand_key(other)

    def __hash__(self) -> int:
        return hash(operand_key(self))


Operand: TypeAlias = Computation | SizeExpression | SymbolSource | int | float


def operand_text(operand: Operand) -> str:
    return repr(operand) if isinstance(operand, int | float) else operand.name()


def operand_sources(operands: tuple[Operand, ...]) -> tuple[Source, ...]:
    """The sources that the operands read, without repetition."""
    found: dict[Source, None] = {}
    for operand in operands:
        if not isinstance(operand, int | float):
            found.update(dict.fromkeys(operand.sources()))
    return tuple(found)


def read_operand(operand: Operand, scope: Scope) -> int | float:
    return operand if isinstance(operand, int | float) else operand.read(scope)


def operand_key(operand: Operand) -> Hashable:
    """Equal for two operands that are the same to the last bit."""
    if isinstance(operand, int | float):
        return constant_key(operand)
    if isinstance(operand, Computation):
        return operand.operation, tuple(map(operand_key, operand.operands))
    return operand
