"""How C++ spells dtypes, index expressions and floats of a call; index expressions taken apart."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable

import sympy
import torch
from weft_loop_ir import IndexSpelling, LoopVariable, NumberSpelling, print_index
from weft_loop_ir.schedule.accesses import linear_form


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


# -- dtypes --------------------------------------------------------------------------------------------


_NUMBERS = "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
COMPUTE_TYPE: dict[torch.dtype, str] = {
    **{getattr(torch, name): re.sub("(?<=[fi])[a-z]+", "", name) for name in _NUMBERS},
    torch.bool: "bool",
    torch.float16: "ui16",
    torch.bfloat16: "ui16",
    torch.float8_e4m3fn: "ui8",
    torch.float8_e5m2: "ui8",
}
"""The element type of a value; floats of 16 and 8 bits are carried as their bits."""

NARROW_FLOATS = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}
"""How functions that convert them from and to float32 call them."""


def memory_type(dtype: torch.dtype) -> str:
    """The element type of a pointer to memory of ``dtype``; other dtypes are opaque bytes."""
    return "ui8" if dtype == torch.bool else COMPUTE_TYPE.get(dtype, "ui8")


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """``value`` as a C++ expression of the compute type of ``dtype``."""
    type_name = COMPUTE_TYPE[dtype]
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point and dtype not in NARROW_FLOATS:
        return _float_literal(float(value), type_name)
    if dtype in NARROW_FLOATS:
        bits = torch.tensor([value], dtype=dtype).view(torch.uint8).numpy().tobytes()
        return f"{type_name}({int.from_bytes(bits, sys.byteorder)})"
    number = int(value)
    if dtype == torch.int64:
        return "(i64(-9223372036854775807ll) - 1)" if number == -(2**63) else f"i64({number}ll)"
    if dtype == torch.uint64:
        return f"ui64({number}ull)"
    return f"{type_name}({number}ll)"


def _float_literal(value: float, type_name: str) -> str:
    suffix = "f" if type_name == "f32" else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if type_name == "f32":  # round once, to float32, as eager's scalars are
        value = torch.tensor(value, dtype=torch.float64).to(torch.float32).item()
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    text = value.hex()
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"


# -- statements ----------------------------------------------------------------------------------------


def indent(lines: Iterable[str]) -> list[str]:
    """``lines`` of a block."""
    return ["  " + line for line in lines]
