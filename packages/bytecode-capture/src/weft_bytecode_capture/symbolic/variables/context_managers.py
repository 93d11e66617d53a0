"""The modes of torch that context managers switch.

``torch.no_grad``, ``torch.enable_grad``, ``torch.set_grad_enabled`` and ``torch.autocast`` are Python
classes, evaluated like any other: what they come down to is calls that switch a mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from weft_guards import IsObject, Source

from ..._torch import InferenceMode, log_api_usage_once
from ...unsupported import Unsupported
from ..builder import register_object
from ..graph.modes import MODES
from .base import Variable
from .builtins import builtin
from .classes import CLASS_CALLS
from .constant import ConstantVariable
from .opaque import RefusedVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


def _register_setter(setter: Any) -> None:
    @builtin(setter)
    def _set(evaluator: Evaluator, *arguments: Variable) -> Variable:
        *place, value = (argument.as_constant() for argument in arguments)
        if tuple(place) not in MODES[setter][1]:
            raise Unsupported("context manager of torch", f"{setter.__name__}{tuple(place)}")
        evaluator.graph.modes.switch(setter, tuple(place), value)
        return ConstantVariable(None)


for _setter in MODES:
    _register_setter(_setter)


@builtin(torch.autocast_increment_nesting)
def _increment_nesting(evaluator: Evaluator) -> Variable:
    return ConstantVariable(evaluator.graph.modes.nest(1))


@builtin(torch.autocast_decrement_nesting)
def _decrement_nesting(evaluator: Evaluator) -> Variable:
    return ConstantVariable(evaluator.graph.modes.nest(-1))


@builtin(log_api_usage_once)
def _log_api_usage_once(evaluator: Evaluator, event: Variable) -> Variable:
    """A note for torch's own statistics."""
    return ConstantVariable(None)


@builtin(torch.clear_autocast_cache)
def _clear_autocast_cache(evaluator: Evaluator) -> Variable:
    evaluator.graph.graph.call_function(torch.clear_autocast_cache)
    return ConstantVariable(None)


class RecordFunctionVariable(Variable):
    """``torch.profiler.record_function``: names a region for a profiler, nothing else."""

    def python_type(self) -> type:
        return torch.profiler.record_function

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("__enter__", "__exit__"):
            return _RecordFunctionMethod(self, name)
        return super().get_attribute(evaluator, name)


class _RecordFunctionMethod(Variable):
    def __init__(self, owner: RecordFunctionVariable, name: str) -> None:
        self.owner = owner
        self.name = name

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        return self.owner if self.name == "__enter__" else ConstantVariable(None)


def _new_record_function(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    return RecordFunctionVariable()


CLASS_CALLS[torch.profiler.record_function] = _new_record_function


@register_object(InferenceMode)
def _wrap_inference_mode(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return RefusedVariable(value, source, "context manager of torch", "torch.inference_mode")
