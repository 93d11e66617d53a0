"""Index expressions: printed as Triton, and bounded so that 32-bit arithmetic is used where it suffices."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy
from weft_loop_ir import FloorDiv, Mod

INT32_SAFE = 2**31 - 2**21
"""Indices below this do not overflow, the padding of the last block included."""


def print_index(expression: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
    """``expression`` in Triton (or Python, where no quotient is of a negative number)."""
    if expression.is_Integer:
        return str(int(expression))
    if expression.is_Symbol:
        return names.get(expression, expression.name)
    arguments = [print_index(a, names) for a in expression.args]
    if expression.is_Add:
        return "(" + " + ".join(arguments) + ")"
    if expression.is_Mul:
        return "(" + " * ".join(arguments) + ")"
    if expression.is_Pow:
        return "(" + " * ".join([arguments[0]] * int(expression.args[1])) + ")"
    if isinstance(expression, FloorDiv | Mod):
        sign, function = (
            ("//", "floordiv") if isinstance(expression, FloorDiv) else ("%", "floormod")
        )
        if expression.args[0].is_nonnegative:
            return f"({arguments[0]} {sign} {arguments[1]})"
        return f"weft.{function}({arguments[0]}, {arguments[1]})"
    if isinstance(expression, sympy.Min | sympy.Max):
        function = "tl.minimum" if isinstance(expression, sympy.Min) else "tl.maximum"
        text = arguments[0]
        for argument in arguments[1:]:
            text = f"{function}({text}, {argument})"
        return text
    raise ValueError(f"no Triton form for the index expression {expression}")


def magnitude(expression: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> float:
    """A bound on the absolute value of ``expression`` and its parts; infinite where a size is symbolic.

    ``sizes`` bounds loop and indirect symbols.
    """
    if expression.is_Integer:
        return abs(int(expression))
    if expression.is_Symbol:
        size = sizes.get(expression)
        return int(size) if size is not None and size.is_Integer else math.inf
    parts = [magnitude(a, sizes) for a in expression.args]
    if expression.is_Add:
        return sum(parts)
    if expression.is_Mul:
        return math.prod(parts) if 0 not in parts else 0
    if expression.is_Pow:
        return float(parts[0] ** int(expression.args[1]))
    return max(parts)


def unit_stride(expression: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Whether a step of ``symbol`` moves the index by one."""
    terms = [t for t in sympy.Add.make_args(expression) if symbol in t.free_symbols]
    return terms == [symbol]
