"""Evaluation of index expressions, on ints and on tensors of ints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from weft_loop_ir.expressions import FloorDiv, Mod


def evaluate_expression(expression: sympy.Expr, sizes: Mapping[sympy.Symbol, int]) -> int:
    """An index expression over size symbols as an int."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    return int(evaluate_index(expression, sizes))


def evaluate_index(expression: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """An index expression, with ints or int64 tensors for its symbols."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        return values[expression]
    arguments = [evaluate_index(a, values) for a in expression.args]
    if isinstance(expression, sympy.Add):
        return sum(arguments[1:], arguments[0])
    if isinstance(expression, sympy.Mul):
        result = arguments[0]
        for argument in arguments[1:]:
            result = result * argument
        return result
    if isinstance(expression, sympy.Pow):
        return arguments[0] ** arguments[1]
    if isinstance(expression, FloorDiv | Mod):
        return _divided(arguments[0], arguments[1], isinstance(expression, FloorDiv))
    if isinstance(expression, sympy.Min | sympy.Max):
        if all(isinstance(argument, int) for argument in arguments):  # which do not overflow
            return (min if isinstance(expression, sympy.Min) else max)(arguments)
        pick = torch.minimum if isinstance(expression, sympy.Min) else torch.maximum
        result = torch.as_tensor(arguments[0])
        for argument in arguments[1:]:
            result = pick(result, torch.as_tensor(argument))
        return result
    raise ValueError(f"not an index expression: {expression}")


def _divided(dividend: Any, divisor: Any, quotient: bool) -> Any:
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if quotient else dividend % divisor
    if quotient:
        return torch.div(dividend, divisor, rounding_mode="floor")
    return torch.remainder(torch.as_tensor(dividend), divisor)
