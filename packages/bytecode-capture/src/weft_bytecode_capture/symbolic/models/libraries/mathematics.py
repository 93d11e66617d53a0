"""What functions of ``math`` are given besides numbers: iterables, and objects that stand for numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import has_raw
from ..numbers.later_numbers import FUNCTIONS_OF_FLOATS
from ..objects.user_objects import UserObjectVariable

_OF_ITERABLES = frozenset(
    getattr(math, name) for name in ("fsum", "sumprod", "dist") if hasattr(math, name)
)
_OF_FLOATS = FUNCTIONS_OF_FLOATS | {math.hypot, math.atan2, math.isclose, math.fmod, math.copysign}
_OF_INTEGERS = frozenset((math.gcd, math.lcm, math.comb, math.perm, math.isqrt, math.factorial))
_NUMBERS = (int, float, bool)


def product(evaluator: Evaluator, elements: Variable, start: Variable | None) -> Variable:
    """``math.prod``, of numbers that vary and of other things too: one multiplication after another."""
    items = elements.iterate(evaluator)
    total = start or ConstantVariable(1)
    if all(item.is_constant() for item in (total, *items)):
        values = [item.as_constant() for item in items]
        return evaluator.wrap_result(evaluator.pure(math.prod, values, start=total.as_constant()))
    for item in items:
        total = evaluator.binary_operation("mul", total, item)
    return total


def plain_operands(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Iterable[Variable]
) -> list[Variable]:
    """Lists of what iterables give, and the numbers that objects of the program's classes stand for.

    In order, up to the first argument that is none of these: for that one the function raises.
    """
    found = list(arguments)
    if function in _OF_ITERABLES:
        return [part if part.is_constant() else evaluator.collected(part) for part in found]
    names: tuple[str, ...] = ("__float__", "__index__") if function in _OF_FLOATS else ()
    if function in _OF_INTEGERS:
        names = ("__index__",)
    for k, argument in enumerate(found if names else ()):
        if argument.is_constant() and type(argument.as_constant()) in _NUMBERS:
            continue
        method = _method(argument, names)
        if method is None:
            break
        convert: Any = operator.index if method == "__index__" else float
        found[k] = evaluator.call_function(evaluator.wrap_known(convert), [argument])
    return found


def _method(argument: Variable, names: tuple[str, ...]) -> str | None:
    """By what an object of a class of the program's is made a number."""
    if not isinstance(argument, UserObjectVariable):
        return None
    kind = argument.python_type()
    if issubclass(kind, (str, bytes, bytearray, int, float)):
        return None
    return next((name for name in names if has_raw(kind, name)), None)
