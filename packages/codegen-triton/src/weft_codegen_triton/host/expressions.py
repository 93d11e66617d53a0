"""Sizes as Python expressions of the host program."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import sympy
from weft_loop_ir import IndexSpelling, NumberSpelling, SizeFloat, print_index, print_number

INDEX = IndexSpelling(
    quotient="({} // {})",
    floor_quotient="({} // {})",
    floor_remainder="({} % {})",
    minimum="min({}, {})",
    maximum="max({}, {})",
)
NUMBER = NumberSpelling(
    index=INDEX,
    operations={
        "add": "({} + {})",
        "sub": "({} - {})",
        "mul": "({} * {})",
        "truediv": "({} / {})",
        "pow": "({} ** {})",
        "neg": "(-{})",
        "abs": "abs({})",
        "sqrt": "math.sqrt({})",
    },
    size="float({})",
    constant=lambda value: f"float({str(value)!r})",  # an infinity has no literal
)


def print_size(expression: SizeFloat | sympy.Expr | int) -> str:
    """An expression over size symbols, or a number, as Python."""
    if isinstance(expression, SizeFloat):
        return print_number(expression, NUMBER)
    return print_index(expression, INDEX)


def bits_of_float(number: float) -> int:
    """The bits of a double as an integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def print_tuple(expressions: Iterable[Any]) -> str:
    """Several sizes as a Python tuple."""
    return "(" + "".join(f"{print_size(e)}, " for e in expressions) + ")"
