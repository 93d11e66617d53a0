"""What the way in which a float is computed says of its sign, whatever the data are; or it is NaN."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ...variables.base import Variable
from .data_numbers import DataFloatVariable
from .tensor_number import TensorNumberVariable


def is_never_negative(number: Variable) -> bool:
    """Whether it is zero, positive or NaN: a sum of squares, say."""
    computed = _computed(number)
    if computed is None:
        return _constant(number) >= 0
    function, operands = computed
    if function in (operator.add, operator.mul):
        return all(map(is_never_negative, operands))
    if function is operator.truediv:
        return is_never_negative(operands[0]) and _constant(operands[1]) > 0
    if function is operator.pow:
        return _constant(operands[1]) % 2 == 0 or is_never_negative(operands[0])
    return function is operator.abs or getattr(function, "__name__", "") == "sqrt"


def is_positive(number: Variable) -> bool:
    """Whether it is above zero or NaN: a constant and what is never negative."""
    if isinstance(number, TensorNumberVariable):
        return number.is_positive
    computed = _computed(number)
    if computed is None:
        return _constant(number) > 0
    function, operands = computed
    added = function is operator.add and all(map(is_never_negative, operands))
    return added and any(map(is_positive, operands))


def is_extreme_positive(function: Any, numbers: Sequence[Variable]) -> bool:
    """Whether the least or the greatest number, by ``min`` or ``max``, is above zero or NaN."""
    return (all if function is min else any)(map(is_positive, numbers))


def _computed(number: Variable) -> tuple[Any, Sequence[Variable]] | None:
    """The function that a float is computed by, and its operands; None of what is read or known."""
    origin = number.origin if isinstance(number, DataFloatVariable) else None
    return origin if isinstance(origin, tuple) else None


def _constant(number: Variable) -> float:
    """The number, if it is known; else NaN."""
    value: Any = number.as_constant() if number.is_constant() else None
    is_known = isinstance(value, (int, float))
    return value if is_known else float("nan")
