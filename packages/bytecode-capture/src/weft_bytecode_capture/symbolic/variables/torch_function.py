"""Functions of torch: those that become nodes of the graph, and queries that are answered at once."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from weft_guards import IsObject, Source

from ..._torch import (
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    is_autocast_available,
    is_torch_function_mode_enabled,
    neural_functions,
    private_backend_name,
)
from ...unsupported import Unsupported
from ..builder import register_object, register_predicate
from .base import Variable
from .constant import ConstantVariable
from .tensor import TensorVariable, wrap_graph_result

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator

_MODULES = ("torch.functional", "torch.nn.functional", "torch._C._nn", "torch._tensor")
# Functions that set or read state, call back into Python, or give Python numbers of a tensor's value.
_REFUSED = frozenset(
    "compile vmap grad save load manual_seed seed set_rng_state get_rng_state set_grad_enabled equal "
    "set_default_dtype set_default_device use_deterministic_algorithms from_numpy "
    "frombuffer is_nonzero allclose _assert cond while_loop".split()
)


def goes_into_graph(value: Any) -> bool:
    """Whether a function is one of torch's operators on tensors."""
    if isinstance(value, (OpOverload, OpOverloadPacket)):
        return True
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or name in _REFUSED:
        return False
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        if getattr(value, "__module__", None) in _MODULES:
            return True
        return getattr(torch, name, None) is value or getattr(neural_functions, name, None) is value
    return isinstance(value, types.MethodDescriptorType) and value.__objclass__ in (
        torch.Tensor,
        TensorBase,
    )


class TorchFunctionVariable(Variable):
    """A function of torch whose calls are nodes."""

    def __init__(self, function: Any, source: Source | None) -> None:
        self.function = function
        self.source = source

    def python_type(self) -> type:
        return type(self.function)

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        if isinstance(self.function, types.MethodDescriptorType) and arguments:
            name = self.function.__name__
            return arguments[0].call_method(evaluator, name, arguments[1:], keywords)
        result = evaluator.graph.call_function(evaluator, self.function, arguments, keywords)
        if isinstance(result, TensorVariable):
            for argument in arguments:
                if isinstance(argument, TensorVariable) and result.fake is argument.fake:
                    return argument  # in place, or nothing to do: the very tensor
        return result

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.function)

    def __repr__(self) -> str:
        return f"TorchFunction({getattr(self.function, '__name__', self.function)})"


class TorchQueryVariable(TorchFunctionVariable):
    """A function of torch that is answered during capture."""

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        answer = _QUERIES[self.function]
        if not callable(answer):
            return ConstantVariable(answer)
        values = [a.fake if isinstance(a, TensorVariable) else a.snapshot() for a in arguments]
        return wrap_graph_result(evaluator, None, evaluator.pure(answer, *values))


_QUERIES: dict[Any, Any] = {
    torch.is_grad_enabled: torch.is_grad_enabled,
    torch.is_inference_mode_enabled: torch.is_inference_mode_enabled,
    torch.is_autocast_enabled: torch.is_autocast_enabled,
    is_autocast_available: is_autocast_available,
    private_backend_name: private_backend_name,
    torch.is_autocast_cache_enabled: torch.is_autocast_cache_enabled,
    torch.get_autocast_dtype: torch.get_autocast_dtype,
    is_torch_function_mode_enabled: is_torch_function_mode_enabled,
    torch.is_floating_point: torch.is_floating_point,
    torch.is_complex: torch.is_complex,
    torch.get_default_dtype: torch.get_default_dtype,
    torch.numel: torch.numel,
    vars(torch.jit)["is_scripting"]: False,
    vars(torch.jit)["is_tracing"]: False,
    torch.compiler.is_compiling: True,
    torch.cuda.is_available: torch.cuda.is_available,
    torch.overrides.has_torch_function: False,
    torch.overrides.has_torch_function_unary: False,
    torch.overrides.has_torch_function_variadic: False,
}


class IsTensorVariable(TorchFunctionVariable):
    """``torch.is_tensor``."""

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        if len(arguments) != 1 or keywords:
            raise Unsupported("call", "torch.is_tensor with other than one argument")
        return ConstantVariable(isinstance(arguments[0], TensorVariable))


@register_object(torch.is_tensor)
def _wrap_is_tensor(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return IsTensorVariable(value, source)


@register_object(*_QUERIES)
def _wrap_query(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return TorchQueryVariable(value, source)


# Registered one by one: an exact type, such as a Python function's, is asked for before predicates.
_PYTHON_FUNCTIONS = [
    value
    for module in (torch.functional, torch.nn.functional)
    for name, value in vars(module).items()
    if isinstance(value, types.FunctionType) and not name.startswith("_") and goes_into_graph(value)
]


@register_object(*_PYTHON_FUNCTIONS)
@register_predicate(goes_into_graph, 100)
def _wrap_function(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return TorchFunctionVariable(value, source)


def put_into_graph(function: Any) -> None:
    """Make calls of ``function`` nodes of the graph, whatever it is."""
    register_object(function)(_wrap_function)
