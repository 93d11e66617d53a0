"""The functions and classes of torch by which programs take part in the ``__torch_function__`` protocol."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions
from weft_guards import (
    AttributeSource,
    ConstantSource,
    EqualsConstant,
    IsObject,
    Source,
    TypeIs,
)

from ...._torch import (
    OVERRIDE_QUERIES,
    DeviceContext,
    WithoutOverrides,
    is_torch_function_mode_enabled,
    pop_torch_function_mode,
    push_torch_function_mode,
    torch_function_mode_at,
    torch_function_modes,
)
from ....unsupported import Unsupported
from ...overrides import OVERRIDE, ask
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_object, register_wrapper
from ...variables.constant import ConstantVariable
from ..containers.mappings import DictVariable, keyword_arguments, new_keyword_dict
from ..containers.sequences import TupleVariable
from ..functions.identified_functions import IdentifiedFunctionVariable
from ..objects.classes import ClassVariable
from ..objects.opaque import OpaqueVariable
from ..table import method_model, model
from .context_managers import ContextVariable
from .subclass_tensors import with_class


class DefaultOverrideVariable(IdentifiedFunctionVariable):
    """``torch.Tensor.__torch_function__``: the function on plain tensors, its results of the class."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if keywords or not 3 <= len(arguments) <= 5:
            raise Unsupported(OVERRIDE, "Tensor.__torch_function__ with keywords")
        kind, function, classes, *rest = arguments
        if not isinstance(kind, ClassVariable):
            raise Unsupported(OVERRIDE, f"Tensor.__torch_function__ of {kind!r}")
        for other in classes.iterate(evaluator):
            if not isinstance(other, ClassVariable) or not issubclass(kind.value, other.value):
                return ConstantVariable(NotImplemented)
        positional = rest[0].iterate(evaluator) if rest else []
        with _Disabled(evaluator):
            named = rest[1] if len(rest) > 1 else None
            given = keyword_arguments(evaluator, named) if isinstance(named, DictVariable) else {}
            result = function.call(evaluator, positional, given)
        if getattr(function, "value", None) in get_default_nowrap_functions():
            return result
        return with_class(evaluator, result, kind.value)


@register_object(vars(torch.Tensor)["__torch_function__"].__func__)
def _wrap_default(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return DefaultOverrideVariable(value, source)


class _Disabled:
    """Operators ask no class of their arguments inside."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._overrides = evaluator.state.overrides
        self._before = self._overrides.of_arguments

    def __enter__(self) -> None:
        self._overrides.of_arguments = False

    def __exit__(self, *exception: object) -> None:
        self._overrides.of_arguments = self._before


class DisabledOverridesVariable(ContextVariable):
    """``torch._C.DisableTorchFunctionSubclass()``, a context manager."""

    kind: Any = WithoutOverrides

    def __init__(self) -> None:
        self._entered: list[_Disabled] = []

    def enter(self, evaluator: Evaluator) -> Variable | None:
        self._entered.append(_Disabled(evaluator))
        self._entered[-1].__enter__()
        return None

    def leave(self, evaluator: Evaluator) -> None:
        self._entered.pop().__exit__()


@model(WithoutOverrides)
def _new_disabled(evaluator: Evaluator) -> Variable:
    return DisabledOverridesVariable()


# Modes.


@model(push_torch_function_mode)
def _push_mode(evaluator: Evaluator, mode: Variable, /) -> None:
    evaluator.state.overrides.modes.append(mode)


@model(pop_torch_function_mode)
def _pop_mode(evaluator: Evaluator) -> Variable:
    modes = evaluator.state.overrides.modes
    if not modes:
        raise Unsupported(OVERRIDE, "a mode from outside the captured function ends")
    return modes.pop()


@model(torch_function_modes)
def _count_modes(evaluator: Evaluator) -> Variable:
    return ConstantVariable(torch_function_modes() + len(evaluator.state.overrides.modes))


@model(torch_function_mode_at)
def _mode_at(evaluator: Evaluator, position: Variable, /) -> Variable:
    modes = evaluator.state.overrides.modes
    number = position.as_constant() - torch_function_modes() if position.is_constant() else -1
    if not 0 <= number < len(modes):
        raise Unsupported(OVERRIDE, "a mode from outside the captured function is asked for")
    return modes[number]


@model(is_torch_function_mode_enabled)
def _is_mode_enabled(evaluator: Evaluator) -> Variable:
    return ConstantVariable(
        is_torch_function_mode_enabled() or bool(evaluator.state.overrides.modes)
    )


# ``with torch.device(...)``, which C++ does.


@method_model("__enter__", torch.device)
def _enter_device(evaluator: Evaluator, device: Variable, /) -> Variable:
    """Functions that make tensors get the device as an argument: the graph has no mode."""
    mode = evaluator.wrap_known(DeviceContext).call(evaluator, [device], {})
    evaluator.state.overrides.modes.append(mode)
    return device


@method_model("__exit__", torch.device)
def _leave_device(evaluator: Evaluator, device: Variable, /, *exception: Variable) -> Variable:
    _pop_mode(evaluator)
    return ConstantVariable(None)


@model(torch.get_default_device)
def _default_device(evaluator: Evaluator) -> Variable:
    for mode in reversed(evaluator.state.overrides.modes):
        if mode.python_type() is DeviceContext:
            device = mode.get_attribute(evaluator, "device").as_constant()
            return ConstantVariable(torch.empty(0, device=device).device)
    return ConstantVariable(torch.get_default_device())


# What Python functions of torch, and those that a program makes overridable, ask and call.


@model(*OVERRIDE_QUERIES)
def _has_override(evaluator: Evaluator, /, *arguments: Variable) -> Variable:
    """``torch.overrides.has_torch_function`` and its kin."""
    overrides = evaluator.state.overrides
    return ConstantVariable(bool(overrides.receivers(evaluator, arguments) or overrides.modes))


@model(torch.overrides.handle_torch_function)
def _handle(
    evaluator: Evaluator,
    function: Variable,
    relevant: Variable,
    /,
    *arguments: Variable,
    **keywords: Variable,
) -> Variable:
    receivers = evaluator.state.overrides.receivers(evaluator, [relevant])
    packed: list[Variable] = [TupleVariable(list(arguments)), new_keyword_dict(keywords)]
    return ask(evaluator, function, receivers, packed)


class PropertyAccessVariable(IdentifiedFunctionVariable):
    """``torch.Tensor.shape.__get__``: what an override is given for a property that is read."""

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if not isinstance(other, PropertyAccessVariable):
            return None
        return bool(self.value == other.value)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        descriptor = self.value.__self__
        if self.value.__name__ != "__get__" or keywords or not arguments:
            raise Unsupported(OVERRIDE, f"{self.value.__name__} of {descriptor.__name__}")
        return arguments[0].get_attribute(evaluator, descriptor.__name__)


@register_wrapper(types.MethodWrapperType)
def _wrap_method_wrapper(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    if isinstance(value.__self__, types.GetSetDescriptorType):
        if not isinstance(source, ConstantSource):  # each read of the descriptor makes another
            evaluator.guard(source, TypeIs(types.MethodWrapperType))
            evaluator.guard(AttributeSource(source, "__self__"), IsObject(value.__self__))
            evaluator.guard(AttributeSource(source, "__name__"), EqualsConstant(value.__name__))
        return PropertyAccessVariable(value, source)
    return OpaqueVariable(value, source)
