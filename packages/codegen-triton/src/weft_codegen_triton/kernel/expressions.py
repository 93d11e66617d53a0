"""Index expressions in Triton, and their bounds, so that 32-bit arithmetic is used where it suffices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import sympy
from weft_loop_ir import FloorDiv, IndexSpelling, Mod

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
    return _bounds(expression, sizes)[1]


def _bounds(
    expression: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[float, float]:
    """Bounds on the absolute values of ``expression``, and of it and all that it is computed of."""
    if expression.is_Integer:
        value: float = abs(int(expression))
        return value, value
    if expression.is_Symbol:
        size = sizes.get(expression)
        value = int(size) if size is not None and size.is_Integer else math.inf
        return value, value
    parts = [_bounds(a, sizes) for a in expression.args]
    value = _value_bound(expression, [v for v, _ in parts])
    return value, max(value, *(largest for _, largest in parts))


def _value_bound(expression: sympy.Expr, operands: Sequence[float]) -> float:
    """A bound on the absolute value of ``expression``, by those of its operands."""
    if expression.is_Add:
        return sum(operands)
    if expression.is_Mul:
        return math.prod(operands) if 0 not in operands else 0
    if expression.is_Pow:
        return float(operands[0] ** int(expression.args[1]))
    if isinstance(expression, FloorDiv) and expression.args[1].is_Integer:
        return operands[0] if math.isinf(operands[0]) else -(-operands[0] // operands[1])
    if isinstance(expression, Mod):
        return operands[1]
    return max(operands)


def unit_stride(expression: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Whether a step of ``symbol`` moves the index by one."""
    terms = [t for t in sympy.Add.make_args(expression) if symbol in t.free_symbols]
    return terms == [symbol]
