"""Functions of ``torch.jit.script``: the Python that they were compiled from is evaluated in their place."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from weft_guards import IsObject, Source

from ...._torch import python_of_script
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ..functions.identified_functions import IdentifiedFunctionVariable
from .tensor import TensorVariable

_ASKS_FOR_SCRIPTING = frozenset({"is_scripting", "is_tracing"})
"""What gives another answer in a script than in Python."""


class ScriptedFunctionVariable(IdentifiedFunctionVariable):
    """Such a function; one of ``torch.jit.trace`` has no Python that does the same."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        function = python_of_script(self.value)
        if function is None or not _ASKS_FOR_SCRIPTING.isdisjoint(function.__code__.co_names):
            raise Unsupported("call of a scripted function", repr(self))
        parameters = inspect.signature(function).parameters
        try:
            bound = inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise Unsupported("call of a scripted function", f"{self!r}: {error}") from error
        for name, argument in bound.arguments.items():
            annotation = parameters[name].annotation
            takes_tensor = annotation in (
                inspect.Parameter.empty,
                torch.Tensor,
                "Tensor",
                "torch.Tensor",
            )
            if takes_tensor and not isinstance(argument, TensorVariable):
                raise Unsupported("call of a scripted function", f"{self!r}: {name} is no tensor")
        return evaluator.wrap_known(function).call(evaluator, arguments, keywords)


@register_wrapper(torch.jit.ScriptFunction)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value, weak=True))
    return ScriptedFunctionVariable(value, source)
