"""How C++ spells index expressions and floats of a call; index expressions taken apart into coefficients."""

from __future__ import annotations

import sympy
import torch
from weft_loop_ir import IndexSpelling, LoopVariable, NumberSpelling, print_index
from weft_loop_ir.schedule.accesses import linear_form

from weft_codegen_cpp.kernel.dtypes import literal


def _integer(value: int) -> str:
    if value == -(2**63):
        return "(-9223372036854775807ll - 1)"
    return f"{value}ll" if abs(value) >= 2**31 else str(value)


INDEX = IndexSpelling(
    quotient="({} / {})",
    floor_quotient="floor_div({}, {})",
    floor_remainder="floor_mod({}, {})",
    minimum="min_index(i64({}), i64({}))",
    maximum="max_index(i64({}), i64({}))",
    integer=_integer,
    power="power_index({}, {})".format,
)
MAGNITUDE = IndexSpelling(
    quotient="floor_div_f64({}, {})",
    floor_quotient="floor_div_f64({}, {})",
    remainder="floor_mod_f64({}, {})",
    floor_remainder="floor_mod_f64({}, {})",
    minimum="min_f64({}, {})",
    maximum="max_f64({}, {})",
    integer=lambda value: repr(float(value)),
    power="power_f64({}, {})".format,
)
"""The same in doubles, by which sizes are known that don't fit in an integer."""


def doubles(expression: sympy.Expr) -> dict[sympy.Symbol, str]:
    """How an expression in :data:`MAGNITUDE` writes the symbols of ``expression``."""
    return {symbol: f"f64({symbol.name})" for symbol in expression.free_symbols}


NUMBER = NumberSpelling(
    index=INDEX,
    operations={
        "pow": "__builtin_pow({}, {})",
        "abs": "__builtin_fabs({})",
        "sqrt": "__builtin_sqrt({})",
    },
    size="f64({})",
    constant=lambda value: literal(value, torch.float64),
)


def size_of(variable: LoopVariable) -> str:
    """The number of a loop's iterations, in C++."""
    return print_index(variable.size, INDEX)


def coefficient(expression: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """What ``symbol`` is multiplied by, if ``expression`` is affine in it; None if it isn't."""
    form = linear_form(expression, (symbol,))
    return None if form.opaque else sympy.sympify(form.coefficients[0])


def static_int(expression: sympy.Expr | int) -> int | None:
    """The value of a constant expression, None for a symbolic one."""
    if isinstance(expression, int):
        return expression
    return int(expression) if expression.is_Integer else None
