"""Index expressions, printed as C++ and taken apart into coefficients; floats of a call, printed as C++."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from weft_loop_ir import FloorDiv, Mod, SizeFloat

from weft_codegen_cpp.kernel.dtypes import literal


def print_index(expression: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
    """``expression`` in C++; a symbol without an entry in ``names`` is printed by its own name."""
    if isinstance(expression, int):
        return str(expression)
    if expression.is_Integer:
        value = int(expression)
        if value == -(2**63):
            return "(-9223372036854775807ll - 1)"
        return f"{value}ll" if abs(value) >= 2**31 else str(value)
    if expression.is_Symbol:
        return names.get(expression, expression.name)
    if expression.is_Add:
        return "(" + " + ".join(print_index(a, names) for a in expression.args) + ")"
    if expression.is_Mul:
        return "(" + " * ".join(print_index(a, names) for a in expression.args) + ")"
    if expression.is_Pow:
        base, exponent = expression.args
        return f"power_index({print_index(base, names)}, {int(exponent)})"
    arguments = [print_index(a, names) for a in expression.args]
    if isinstance(expression, FloorDiv):
        if expression.args[0].is_nonnegative:
            return f"({arguments[0]} / {arguments[1]})"
        return f"floor_div({arguments[0]}, {arguments[1]})"
    if isinstance(expression, Mod):
        if expression.args[0].is_nonnegative:
            return f"({arguments[0]} % {arguments[1]})"
        return f"floor_mod({arguments[0]}, {arguments[1]})"
    if isinstance(expression, sympy.Min | sympy.Max):
        function = "min_index" if isinstance(expression, sympy.Min) else "max_index"
        text = arguments[0]
        for argument in arguments[1:]:
            text = f"{function}(i64({text}), i64({argument}))"
        return text
    raise ValueError(f"no C++ form for the index expression {expression}")


_NUMBER_FORMS = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "truediv": "({} / {})",
    "pow": "__builtin_pow({}, {})",
    "neg": "(-{})",
    "abs": "__builtin_fabs({})",
    "sqrt": "__builtin_sqrt({})",
}


def print_number(number: SizeFloat, names: Mapping[sympy.Symbol, str]) -> str:
    """A float of the call as a C++ double, computed in the order of its operations."""
    if number.operation == "input":
        return names[number.leaf]
    if number.operation == "size":
        return f"f64({print_index(number.leaf, names)})"
    if number.operation == "constant":
        return literal(float(number.leaf), torch.float64)
    form = _NUMBER_FORMS[number.operation]
    return form.format(*(print_number(part, names) for part in number.parts))


def coefficient(expression: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """What ``symbol`` is multiplied by, if ``expression`` is affine in it; None if it isn't."""
    if symbol not in expression.free_symbols:
        return sympy.S.Zero
    if expression.is_Symbol:
        return sympy.S.One
    if expression.is_Add:
        total = sympy.S.Zero
        for argument in expression.args:
            part = coefficient(argument, symbol)
            if part is None:
                return None
            total = total + part
        return total
    if expression.is_Mul:
        rest = []
        found = None
        for factor in expression.args:
            if symbol in factor.free_symbols:
                if found is not None:
                    return None
                found = coefficient(factor, symbol)
                if found is None:
                    return None
            else:
                rest.append(factor)
        return sympy.Mul(found, *rest)
    return None


def static_int(expression: sympy.Expr | int) -> int | None:
    """The value of a constant expression, None for a symbolic one."""
    if isinstance(expression, int):
        return expression
    return int(expression) if expression.is_Integer else None
