"""How dtypes, numbers and index expressions are written in Triton."""

from __future__ import annotations

import math
import re

import sympy
import torch
from weft_loop_ir import IndexSpelling
from weft_loop_ir.expressions import unit_stride
from weft_loop_ir.ops import FLOAT8
from weft_loop_ir.unsupported import Unsupported

_SHORT = {"int": "i", "uint": "u", "float": "fp", "bfloat": "bf"}
_NAMES = [
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64"),
]
TRITON_DTYPES: dict[torch.dtype, str] = {torch.bool: "tl.int1"} | {
    getattr(torch, n): f"tl.{n}" for n in _NAMES
}
POINTER_TYPES: dict[torch.dtype, str] = {torch.bool: "*i1"} | {
    getattr(torch, n): re.sub("[a-z]+", lambda kind: f"*{_SHORT[kind[0]]}", n) for n in _NAMES
}
"""How signatures write a pointer to each dtype."""

EIGHT_BITS = (torch.bool, torch.int8, torch.uint8)
"""Whole numbers that both dtypes of 16 bits hold exactly."""

ATOMIC_ADD = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
"""What the hardware adds atomically."""


def triton_dtype(dtype: torch.dtype) -> str:
    """The name of ``dtype`` in Triton; raises :class:`Unsupported` where it has none.

    Numbers of 8 bits are their bits there: Triton's own saturate, and old GPUs have none.
    """
    if dtype in FLOAT8:
        return TRITON_DTYPES[torch.uint8]
    if dtype not in TRITON_DTYPES:
        raise Unsupported("no Triton kernel handles a dtype", str(dtype))
    return TRITON_DTYPES[dtype]


def pointer_type(dtype: torch.dtype) -> str:
    """The type of a pointer to ``dtype``; raises :class:`Unsupported` where there is none."""
    triton_dtype(dtype)
    return POINTER_TYPES[torch.uint8 if dtype in FLOAT8 else dtype]


def literal(value: bool | int | float) -> str:
    """``value`` as an expression that Triton's compiler reads."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def wrapped(value: int, dtype: torch.dtype) -> int:
    """``value`` as the integer that its lowest bits are in ``dtype``: Triton takes no other constant."""
    least = torch.iinfo(dtype).min
    return (value - least) % (1 << 8 * dtype.itemsize) + least


def lowest(dtype: torch.dtype) -> str:
    """The identity of a maximum."""
    if dtype.is_floating_point:
        return 'float("-inf")'
    return "0" if dtype is torch.bool else str(torch.iinfo(dtype).min)


def highest(dtype: torch.dtype) -> str:
    """The identity of a minimum."""
    if dtype.is_floating_point:
        return 'float("inf")'
    return "1" if dtype is torch.bool else str(torch.iinfo(dtype).max)


# -- index expressions ---------------------------------------------------------------------------------


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
