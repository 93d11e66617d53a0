"""The modes of torch that context managers switch.

``torch.no_grad``, ``torch.enable_grad``, ``torch.inference_mode`` and ``torch.autocast`` are Python
classes, evaluated like any other: what they come down to is calls that switch a mode.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import ConstantSource, Source

from ...._torch import InferenceMode, log_api_usage_once
from ...._torch.library_settings import GETTERS, OTHER_GETTERS
from ....frame.emitter import Emitter
from ....sources import CalledSource
from ....unsupported import Unsupported
from ...graph.modes import MODES
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..objects.opaque import RefusedVariable
from ..table import model, models


@models(*MODES)
def _set(setter: Any, evaluator: Evaluator, *arguments: Variable) -> None:
    *place, value = (argument.as_constant() for argument in arguments)
    if tuple(place) not in MODES[setter][1]:
        raise Unsupported("context manager of torch", f"{setter.__name__}{tuple(place)}")
    evaluator.graph.modes.switch(setter, tuple(place), value)


@models(*GETTERS)
def _set_of_library(setter: Any, evaluator: Evaluator, *arguments: Variable) -> None:
    *place, value = (argument.as_constant() for argument in arguments)
    if evaluator.graph.is_in_region:
        raise Unsupported("change of torch's defaults", setter.__name__)
    evaluator.graph.library_settings.set(setter, tuple(place), value)


@models(*GETTERS.values(), *OTHER_GETTERS)
def _setting_of_library(getter: Any, evaluator: Evaluator, *arguments: Variable) -> Variable:
    """The present value, and a guard that the call begins with the one it began with."""
    place = tuple(argument.as_constant() for argument in arguments)
    entry = evaluator.graph.library_settings.entry
    before = next((v for (s, p), v in entry.items() if (GETTERS[s], p) == (getter, place)), None)
    present = getter(*place)
    names = tuple(ConstantSource(repr(name), name) for name in place)
    found = evaluator.builder.wrap(
        present if before is None else before, CalledSource(getter, names)
    )
    return found if before in (None, present) else evaluator.wrap_constant(present)


@model(torch.autocast_increment_nesting)
def _increment_nesting(evaluator: Evaluator) -> Variable:
    return ConstantVariable(evaluator.graph.modes.nest(1))


@model(torch.autocast_decrement_nesting)
def _decrement_nesting(evaluator: Evaluator) -> Variable:
    return ConstantVariable(evaluator.graph.modes.nest(-1))


@model(log_api_usage_once)
def _log_api_usage_once(evaluator: Evaluator, event: Variable, /) -> Variable:
    """A note for torch's own statistics."""
    return ConstantVariable(None)


@model(torch.clear_autocast_cache)
def _clear_autocast_cache(evaluator: Evaluator) -> None:
    evaluator.graph.graph.call_function(torch.clear_autocast_cache)


class ContextVariable(Variable):
    """A context manager of torch's own whose methods the evaluator knows."""

    def enter(self, evaluator: Evaluator) -> Variable | None:
        """What ``__enter__`` does and gives; None for None."""

    def leave(self, evaluator: Evaluator) -> None:
        """What ``__exit__`` does."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("__enter__", "__exit__"):
            return BuiltinMethodVariable(self, name)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__enter__":
            return self.enter(evaluator) or ConstantVariable(None)
        if name != "__exit__":
            return super().call_method(evaluator, name, arguments, keywords)
        self.leave(evaluator)
        return ConstantVariable(None)


class RecordFunctionVariable(ContextVariable):
    """``torch.profiler.record_function``: names a region for a profiler, nothing else."""

    kind = torch.profiler.record_function

    def enter(self, evaluator: Evaluator) -> Variable | None:
        return self


@model(torch.profiler.record_function)
def _new_record_function(
    evaluator: Evaluator, name: Variable, args: Variable | None = None
) -> Variable:
    return RecordFunctionVariable()


class InferenceModeVariable(ContextVariable):
    """What ``torch.inference_mode`` enters: one context, unentered once it is rebuilt."""

    kind: Any = InferenceMode

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def enter(self, evaluator: Evaluator) -> Variable | None:
        evaluator.graph.modes.enter_inference(self, self.wanted)
        return None

    def leave(self, evaluator: Evaluator) -> None:
        root = evaluator.state.root
        evaluator.graph.modes.leave_inference(self, root.index if root is not None else None)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(InferenceMode, self.wanted)


@model(InferenceMode)
def _new_inference_mode(evaluator: Evaluator, enabled: Variable | None = None, /) -> Variable:
    wanted = True if enabled is None else enabled.as_constant()
    if not isinstance(wanted, bool):
        raise Unsupported("context manager of torch", f"inference_mode({wanted!r})")
    return InferenceModeVariable(wanted)


@register_wrapper(InferenceMode)
def _wrap_inference_mode(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """One that was entered before the frame began: only CPython knows what leaving it restores."""
    return RefusedVariable(value, source, "context manager of torch", "torch.inference_mode")
