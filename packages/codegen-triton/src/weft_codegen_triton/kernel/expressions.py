"""Index expressions in Triton, and their bounds, so that 32-bit arithmetic is used where it suffices."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy
from weft_loop_ir import IndexSpelling

INT32_SAFE = 2**31 - 2**21
"""Indices below this do not overflow, the padding of the last block included."""


INDEX = IndexSpelling(
    quotient="({} // {})",
    floor_quotient="weft.floordiv({}, {})",
    floor_remainder="weft.floormod({}, {})",
    minimum="tl.minimum({}, {})",
    maximum="tl.maximum({}, {})",
)


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
