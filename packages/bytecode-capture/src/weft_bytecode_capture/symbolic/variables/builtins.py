"""Builtin functions and the calls of builtin classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft_guards import IsObject, Source

from ...unsupported import Unsupported
from ..builder import register_object
from .base import Variable
from .identified_functions import IdentifiedFunctionVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

Implementation = Callable[..., Variable]


class BuiltinFunctionVariable(IdentifiedFunctionVariable):
    """A function written in C."""

    def __init__(
        self,
        value: Any,
        source: Source | None = None,
        implementation: Implementation | None = None,
    ) -> None:
        super().__init__(value, source)
        self._implementation = implementation

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        if self._implementation is None:
            raise Unsupported(
                "call of a builtin function",
                f"{self.value.__name__}({', '.join(map(repr, arguments))})",
                "the evaluator does not know what it does",
            )
        return self._implementation(evaluator, *arguments, **keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Methods of one object are equal, however often they were bound."""
        if operator not in ("eq", "ne") or not isinstance(other, BuiltinFunctionVariable):
            return None
        return evaluator.wrap_constant((self.value == other.value) is (operator == "eq"))

    def __repr__(self) -> str:
        return f"Builtin({self.value.__name__})"


def builtin(function: Any) -> Callable[[Implementation], Implementation]:
    """Register what a call of a builtin function does."""

    def register(implementation: Implementation) -> Implementation:
        def wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
            evaluator.guard(source, IsObject(value))
            return BuiltinFunctionVariable(value, source, _checked(function, implementation))

        register_object(function)(wrap)
        return implementation

    return register


def _checked(function: Any, implementation: Implementation) -> Implementation:
    """The implementation; arguments that it does not take are unsupported."""
    signature = inspect.signature(implementation)

    def call(evaluator: Evaluator, *arguments: Variable, **keywords: Variable) -> Variable:
        try:
            signature.bind(evaluator, *arguments, **keywords)
        except TypeError as error:
            raise Unsupported("arguments of a builtin function", function.__name__) from error
        return implementation(evaluator, *arguments, **keywords)

    return call
