"""Formatting of values into strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from .base import Variable
from .classes import ClassVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

_CONVERSIONS: dict[str, Callable[[Any], str]] = {"str": str, "repr": repr, "ascii": ascii}


def format_value(
    evaluator: Evaluator, value: Variable, conversion: str | None, specification: Variable
) -> Variable:
    """``format(value, specification)`` after ``!s``, ``!r`` or ``!a``."""
    plain = printable(value)
    if conversion is not None:
        plain = evaluator.pure(_CONVERSIONS[conversion], plain)
    return evaluator.wrap_constant(evaluator.pure(format, plain, specification.as_constant()))


def printable(value: Variable) -> Any:
    """The Python value that prints as ``value`` does."""
    if isinstance(value, ClassVariable):
        metaclass: Any = type(value.value)
        special = (metaclass.__repr__, metaclass.__str__, metaclass.__format__)
        if special != (type.__repr__, object.__str__, object.__format__):
            raise Unsupported("formatting of a class with a metaclass", repr(value))
        return value.value
    return value.snapshot()


def join_strings(evaluator: Evaluator, parts: list[Variable]) -> Variable:
    """The pieces of an f-string."""
    return evaluator.wrap_constant("".join(part.as_constant() for part in parts))
