"""Functions that a program has marked: weft's marks and those of ``torch.compiler``."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from ...._torch import calls_nested_region, has_constant_result, is_allowed_in_graph, substitute_of
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import when_function_is_met
from ..table import model, polyfill
from ..torch.torch_function import put_into_graph


def give_constant(function: Callable[..., Any]) -> None:
    """Have every call of ``function`` made while capturing, and its result taken for a constant."""

    @model(function)
    def call(evaluator: Evaluator, *arguments: Variable, **keywords: Variable) -> Variable:
        values = [argument.as_constant() for argument in arguments]
        named = {name: value.as_constant() for name, value in keywords.items()}
        try:
            result = function(*values, **named)
        except Exception as error:  # the function's own
            evaluator.raise_python_error(error)
        return evaluator.wrap_result(result)


@when_function_is_met
def _honour_torch_marks(function: types.FunctionType | types.BuiltinFunctionType) -> None:
    if has_constant_result(function):
        give_constant(function)
    elif is_allowed_in_graph(function):
        put_into_graph(function)
    elif (substitute := substitute_of(function)) is not None:
        polyfill(function)(substitute)
    elif calls_nested_region(function):
        polyfill(function)(_call)


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


@polyfill(torch.compiler.cudagraph_mark_step_begin)
def _mark_step() -> None:
    """Nothing: it is about torch's own CUDA graphs."""
