"""Floating-point numbers of a call: those passed, and those computed from them and from sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.expressions import evaluate_expression, from_torch
from weft_loop_ir.unsupported import Unsupported

DIVISIONS = ("FloatTrueDiv", "IntTrueDiv")

GRAPH_FUNCTIONS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "truediv",
    operator.pow: "pow",
    operator.neg: "neg",
    operator.abs: "abs",
    math.sqrt: "sqrt",
    torch.sym_sqrt: "sqrt",
}
"""The operations on numbers by the functions that a graph calls, to the names that :class:`SizeFloat` has."""


def quotient(dividend: float, divisor: float) -> float:
    """``dividend / divisor`` as machines divide: by zero too, infinite or NaN."""
    if divisor:
        return dividend / divisor
    if not dividend or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


ARITHMETIC: dict[str, Callable[..., float]] = {
    **{name: function for function, name in GRAPH_FUNCTIONS.items()},
    "truediv": quotient,
    "sqrt": math.sqrt,
}
"""What the host program computes by a name."""


@dataclass(frozen=True, eq=False)
class SizeFloat:
    """A double that the numbers and input sizes of a call determine: ``operation`` of ``operands``.

    ``operation`` is ``"input"`` (of a symbol: a float that is passed), ``"size"`` (of an integer index
    expression), ``"constant"`` (of a float), or a name in :data:`ARITHMETIC`, of other numbers.  The host
    program computes it, in double precision and in this order of operations, and hands it to kernels.
    """

    operation: str
    operands: tuple[SizeFloat | sympy.Expr | float, ...]

    @property
    def free_symbols(self) -> set[sympy.Symbol]:
        """The symbols of sizes and numbers that it depends on."""
        found: set[sympy.Symbol] = set()
        for operand in self.operands:
            if isinstance(operand, SizeFloat | sympy.Expr):
                found |= operand.free_symbols
        return found

    @property
    def is_passed(self) -> bool:
        """Whether it is a float that a call is given."""
        return self.operation == "input"

    @property
    def leaf(self) -> Any:
        """The operand of an input, a size or a constant."""
        return self.operands[0]

    @property
    def parts(self) -> tuple[SizeFloat, ...]:
        """The operands of arithmetic."""
        return tuple(operand for operand in self.operands if isinstance(operand, SizeFloat))

    def evaluate(self, numbers: Mapping[sympy.Symbol, Any]) -> float:
        """The number for these sizes and floats."""
        if self.is_passed:
            return float(numbers[self.leaf])
        if self.operation == "size":
            return float(evaluate_expression(self.leaf, numbers))
        if self.operation == "constant":
            return float(self.leaf)
        return ARITHMETIC[self.operation](*(part.evaluate(numbers) for part in self.parts))

    def _key(self) -> Any:
        if self.operation == "constant":
            return self.operation, float(self.leaf).hex()  # 0.0 is not -0.0
        return self.operation, self.operands

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SizeFloat) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        if len(self.parts) == 0:
            return str(self.leaf)
        return f"{self.operation}({', '.join(map(str, self.parts))})"


def as_size_float(number: SizeFloat | sympy.Expr | int | float) -> SizeFloat:
    """A number, or an integer index expression, as a :class:`SizeFloat`."""
    if isinstance(number, SizeFloat):
        return number
    if isinstance(number, sympy.Expr):
        return SizeFloat("size", (number,))
    return SizeFloat("constant", (float(number),))


_FUNCTIONS = {
    **dict.fromkeys(DIVISIONS, "truediv"),
    **dict.fromkeys(("FloatPow", "Pow"), "pow"),
    "OpaqueUnaryFn_sqrt": "sqrt",
}
"""torch's and SymPy's names to those of :class:`SizeFloat`."""


def size_float(
    expression: sympy.Expr, known: Mapping[sympy.Symbol, SizeFloat] | None = None
) -> SizeFloat:
    """torch's symbolic float as a :class:`SizeFloat`; raises :class:`Unsupported` for other functions.

    ``known`` are the floats that the expression's symbols stand for.
    """
    if known is not None and expression in known:
        return known[expression]
    if expression.is_number:
        return SizeFloat("constant", (float(expression),))
    name = type(expression).__name__
    arguments = expression.args
    if name == "ToFloat":
        return SizeFloat("size", (from_torch(arguments[0]),))
    operands = [_operand(argument, known) for argument in arguments]
    if name in _FUNCTIONS:
        return SizeFloat(_FUNCTIONS[name], tuple(operands))
    if name in ("Add", "Mul"):
        result = operands[0]
        for operand in operands[1:]:
            result = SizeFloat(name.lower(), (result, operand))
        return result
    raise Unsupported(
        "symbolic number",
        str(expression),
        "Numbers are sums, products, quotients, powers and square roots of sizes.",
    )


def _operand(expression: sympy.Expr, known: Mapping[sympy.Symbol, SizeFloat] | None) -> SizeFloat:
    """An operand, which is an integer where torch divides or multiplies by one."""
    if expression.is_number:
        return SizeFloat("constant", (float(expression),))
    if expression.is_integer and type(expression).__name__ not in ("FloatPow", *DIVISIONS):
        return SizeFloat("size", (from_torch(expression),))
    return size_float(expression, known)
