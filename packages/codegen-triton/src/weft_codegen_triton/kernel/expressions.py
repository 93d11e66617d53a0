"""Index expressions in Triton."""

from __future__ import annotations

import sympy
from weft_loop_ir import IndexSpelling
from weft_loop_ir.expressions import unit_stride

INDEX = IndexSpelling(
    quotient="({} // {})",
    floor_quotient="weft.floordiv({}, {})",
    floor_remainder="weft.floormod({}, {})",
    minimum="tl.minimum({}, {})",
    maximum="tl.maximum({}, {})",
)


def loop_bound(number: str) -> str:
    """``number`` as a loop's bound: the interpreter's own are arrays, which bound none."""
    return number if number.isdigit() else f"math.bound({number})"


def steps_by_one(expression: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """The same in either direction."""
    return unit_stride(expression, symbol) or unit_stride(-expression, symbol)
