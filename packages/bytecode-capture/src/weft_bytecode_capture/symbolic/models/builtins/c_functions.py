"""Functions with a model, and functions written in C that have none."""

from __future__ import annotations

import types
from typing import Any

from weft_guards import IsObject, Source

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_object, register_predicate
from ..functions.identified_functions import IdentifiedFunctionVariable
from ..table import model_of, when_function_is_modelled


class BuiltinFunctionVariable(IdentifiedFunctionVariable):
    """A function whose calls its model evaluates."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        model = model_of(self.value)
        if model is None:
            raise Unsupported(
                "call of a builtin function",
                f"{self.value.__name__}({', '.join(map(repr, arguments))})",
                "the evaluator does not know what it does",
            )
        return model.call(evaluator, arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Methods of one object are equal, however often they were bound."""
        if operator not in ("eq", "ne") or not isinstance(other, BuiltinFunctionVariable):
            return None
        return evaluator.wrap_constant((self.value == other.value) is (operator == "eq"))

    def __repr__(self) -> str:
        return f"Builtin({self.value.__name__})"


def _wrap_modelled(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return BuiltinFunctionVariable(value, source)


@when_function_is_modelled
def _note(function: Any) -> None:
    register_object(function)(_wrap_modelled)


@register_predicate(lambda value: type(value) is types.BuiltinFunctionType, -100)
def _wrap_builtin(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value, weak=True))
    return BuiltinFunctionVariable(value, source)
