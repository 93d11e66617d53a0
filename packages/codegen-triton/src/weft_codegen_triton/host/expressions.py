"""Sizes as Python expressions of the host program."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from weft_loop_ir import (
    BufferView,
    IndexSpelling,
    Layout,
    NumberSpelling,
    SizeFloat,
    print_index,
    print_number,
)

from weft_codegen_triton.kernel.index_bounds import Bound

INDEX = IndexSpelling(
    quotient="({} // {})",
    floor_quotient="({} // {})",
    floor_remainder="({} % {})",
    minimum="min({}, {})",
    maximum="max({}, {})",
)
ANY = dataclasses.replace(
    INDEX,
    quotient="({} // ({} or 1))",
    floor_quotient="({} // ({} or 1))",
    remainder="({} % ({} or 1))",
    floor_remainder="({} % ({} or 1))",
)
"""As :data:`INDEX`, with a result where a divisor is 0: nothing is computed in a call like that."""
NUMBER = NumberSpelling(
    index=INDEX,
    operations={
        "pow": "({} ** {})",
        "truediv": "quotient({}, {})",
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


def print_magnitude(size: sympy.Expr) -> str:
    """The absolute value of a size, at least 1, for any values of its symbols."""
    text = print_index(size, ANY)
    is_size = size.is_Symbol and size.is_nonnegative
    return f"{text} or 1" if is_size else f"max(abs({text}), 1)"


def print_bound(bound: Bound, names: Mapping[sympy.Expr, str]) -> str:
    """A bound of indices; ``names`` holds its factors' magnitudes."""
    products = []
    for factors, times in bound.items():
        number = int(times) if float(times).is_integer() else times
        texts = [names[factor] for factor in factors]
        products.append(" * ".join([*texts, str(number)] if number != 1 or not texts else texts))
    return " + ".join(products)


def print_tuple(expressions: Iterable[Any]) -> str:
    """Several sizes as a Python tuple."""
    return "(" + "".join(f"{print_size(e)}, " for e in expressions) + ")"


def print_strided(tensor: str, of: Layout | BufferView, offset: str) -> str:
    """A view of ``tensor`` with the sizes and strides of ``of``."""
    return f"as_strided({tensor}, {print_tuple(of.size)}, {print_tuple(of.stride)}, {offset})"
