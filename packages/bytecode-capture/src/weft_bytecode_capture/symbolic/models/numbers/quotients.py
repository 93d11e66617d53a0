"""Whole numbers from quotients of sizes: ``int(n / 2)``, ``math.ceil(n / 2)``, ``int(n * 0.75)``.

A quotient is a float, and rounding it is a division of integers wherever the float lies on the same side of
every whole number as the fraction: for numerators below 2**53.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable

if TYPE_CHECKING:
    from .symbolic_number import SymbolicNumberVariable

_EXACT = 2**53
"""Up to here every integer is a float."""

_MAX_FACTOR = 2**20
"""Of a float that is a fraction of small numbers, as 0.75 is and 0.1 is not."""

ROUNDINGS = {"__int__": "floor", "__trunc__": "floor", "__floor__": "floor", "__ceil__": "ceil"}
"""Methods that round a float, by where a number that is not negative goes."""


@dataclass(frozen=True)
class Quotient:
    """``numerator * factor / divisor``, where the first is an integer that varies."""

    numerator: SymbolicNumberVariable
    factor: int
    divisor: int

    def rounded(self, evaluator: Evaluator, direction: str) -> Variable | None:
        """The whole number below or above; None for a numerator that is negative, or too large."""
        numerator = self.numerator
        if not (numerator.holds("ge", 0) and numerator.holds("lt", _EXACT // self.factor)):
            return None
        scaled = evaluator.binary_operation("mul", numerator, ConstantVariable(self.factor))
        if direction == "ceil":
            added = ConstantVariable(self.divisor - 1)
            scaled = evaluator.binary_operation("add", scaled, added)
        return evaluator.binary_operation("floordiv", scaled, ConstantVariable(self.divisor))


def quotient(operator: str, pair: tuple[Variable, Variable]) -> Quotient | None:
    """The quotient that ``operator`` gives of an integer that varies and a constant; None for others."""
    from .symbolic_number import SymbolicNumberVariable

    if operator not in ("mul", "truediv"):
        return None
    left, right = pair
    if operator == "mul" and left.is_constant():
        left, right = right, left
    if not isinstance(left, SymbolicNumberVariable) or not isinstance(left.value, torch.SymInt):
        return None
    if not right.is_constant():
        return None
    constant = right.as_constant()
    kinds = (float,) if operator == "mul" else (int, float)  # a product of integers is none
    if type(constant) not in kinds or not 0 < constant < _MAX_FACTOR:
        return None
    above, below = constant.as_integer_ratio()
    if max(above, below) > _MAX_FACTOR:
        return None
    return Quotient(left, above, below) if operator == "mul" else Quotient(left, below, above)
