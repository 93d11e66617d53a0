"""Sizes as Python expressions of the host program."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import sympy
from weft_loop_ir import FloorDiv, Mod, SizeFloat

INFIX = {sympy.Add: " + ", sympy.Mul: " * ", sympy.Pow: " ** ", FloorDiv: " // ", Mod: " % "}


def print_size(expression: Any) -> str:
    """An expression over size symbols, or a number, as Python."""
    if isinstance(expression, SizeFloat):
        return _print_float(expression)
    expression = sympy.sympify(expression)
    if not expression.args:
        return str(expression)
    arguments = [print_size(a) for a in expression.args]
    for kind, sign in INFIX.items():
        if isinstance(expression, kind):
            return "(" + sign.join(arguments) + ")"
    function = "min" if isinstance(expression, sympy.Min) else "max"
    return f"{function}({', '.join(arguments)})"


def _print_float(number: SizeFloat) -> str:
    operands = [
        print_size(o) if isinstance(o, SizeFloat | sympy.Expr) else repr(o) for o in number.operands
    ]
    match number.operation:
        case "input":
            return operands[0]
        case "neg":
            return f"(-{operands[0]})"
        case "abs":
            return f"abs({operands[0]})"
        case "size" | "constant":
            return f"float({operands[0]})"
        case "sqrt":
            return f"math.sqrt({operands[0]})"
    sign = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}[number.operation]
    return f"({operands[0]} {sign} {operands[1]})"


def bits_of_float(number: float) -> int:
    """The bits of a double as an integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def print_tuple(expressions: Iterable[Any]) -> str:
    """Several sizes as a Python tuple."""
    return "(" + "".join(f"{print_size(e)}, " for e in expressions) + ")"
