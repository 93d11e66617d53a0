"""Index expressions and numbers as source text: one walk, and a table of spellings for each language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy

from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.size_float import SizeFloat

NO_NAMES: Mapping[sympy.Symbol, str] = {}


def _repeated(base: str, exponent: int) -> str:
    return "(" + " * ".join([base] * exponent) + ")"


@dataclass(frozen=True)
class IndexSpelling:
    """How a language writes integer expressions; strings are formats of two operands.

    ``quotient`` and ``remainder`` are for dividends that are not negative, for which C and Python agree;
    ``floor_quotient`` and ``floor_remainder`` round toward minus infinity for any.  ``minimum`` and
    ``maximum`` take two operands.  ``integer`` writes a constant, ``power`` a positive constant power.
    """

    floor_quotient: str
    floor_remainder: str
    minimum: str
    maximum: str
    quotient: str
    remainder: str = "({} % {})"
    integer: Callable[[int], str] = str
    power: Callable[[str, int], str] = _repeated


def print_index(
    expression: sympy.Expr | int,
    spelling: IndexSpelling,
    names: Mapping[sympy.Symbol, str] = NO_NAMES,
) -> str:
    """An integer expression as ``spelling`` writes it; a symbol not in ``names`` keeps its name."""
    if isinstance(expression, int) or expression.is_Integer:
        return spelling.integer(int(expression))
    if expression.is_Symbol:
        return names.get(expression, str(expression.name))
    if expression.is_Pow:
        base, exponent = expression.args
        return spelling.power(print_index(base, spelling, names), int(exponent))
    operands = [print_index(a, spelling, names) for a in expression.args]
    if expression.is_Add:
        return "(" + " + ".join(operands) + ")"
    if expression.is_Mul:
        return "(" + " * ".join(operands) + ")"
    form = _form(expression, spelling)
    text = operands[0]
    for operand in operands[1:]:
        text = form.format(text, operand)
    return text


def _form(expression: sympy.Expr, spelling: IndexSpelling) -> str:
    """The format of a function of two operands, or of several that are taken two at a time."""
    if isinstance(expression, FloorDiv):
        is_natural = expression.args[0].is_nonnegative
        return spelling.quotient if is_natural else spelling.floor_quotient
    if isinstance(expression, Mod):
        is_natural = expression.args[0].is_nonnegative
        return spelling.remainder if is_natural else spelling.floor_remainder
    if isinstance(expression, sympy.Min):
        return spelling.minimum
    if isinstance(expression, sympy.Max):
        return spelling.maximum
    raise ValueError(f"no form for the index expression {expression}")


ARITHMETIC = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "truediv": "({} / {})",
    "neg": "(-{})",
}
"""What C and Python write alike."""


@dataclass(frozen=True)
class NumberSpelling:
    """How a language writes a :class:`SizeFloat`.

    ``operations`` are formats by the names in its arithmetic, where :data:`ARITHMETIC` has none or another.
    ``size`` is the format of an integer converted to a double, ``constant`` writes a double.
    """

    index: IndexSpelling
    operations: Mapping[str, str]
    size: str
    constant: Callable[[float], str]


def print_number(
    number: SizeFloat, spelling: NumberSpelling, names: Mapping[sympy.Symbol, str] = NO_NAMES
) -> str:
    """A number of the call as a double, computed in the order of its operations."""
    if number.operation in ("input", "size"):
        text = print_index(number.leaf, spelling.index, names)
        return text if number.is_passed else spelling.size.format(text)
    if number.operation == "constant":
        return spelling.constant(float(number.leaf))
    form = spelling.operations.get(number.operation) or ARITHMETIC[number.operation]
    return form.format(*(print_number(part, spelling, names) for part in number.parts))
