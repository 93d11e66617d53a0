"""Everything private of torch that capture reaches.  Checked on torch 2.13."""

import linecache
import weakref

import torch
from torch._C import TensorBase as TensorBase
from torch._C import _get_privateuse1_backend_name as private_backend_name
from torch._C import _get_tracing_state as get_tracing_state
from torch._C import _InferenceMode as InferenceMode
from torch._C import _is_autocast_available as is_autocast_available
from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
from torch._C import _len_torch_dispatch_stack as torch_dispatch_modes
from torch._C import _len_torch_function_stack as torch_function_modes
from torch._C import _log_api_usage_once as log_api_usage_once
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
)
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import (
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode as GuardOnDataDependentSymNode,
)
from torch.fx.graph_module import _loader as _source_loader

NATIVE_FUNCTIONS = tuple(getattr(torch._C, name) for name in ("_nn", "_fft", "_linalg", "_special"))
"""Where operators' Python functions are, beside the namespace ``torch`` itself."""

GLOBAL_HOOKS = {
    name: getattr(torch.nn.modules.module, f"_global{name}")
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
}
"""The hooks of all modules, by the name of a module's own."""

FAKE_TENSOR_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NotImplementedError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What operators raise that cannot run on fake tensors although their arguments may be right."""

MODULE_CALL = torch.nn.Module._call_impl.__code__
"""The code of a module's call, around its ``forward``."""


def forget_source_with(module: torch.fx.GraphModule) -> None:
    """Let the text of a module's code go with the module; torch.fx keeps it for good, for tracebacks."""
    weakref.finalize(module, _forget_source, module.forward.__code__.co_filename).atexit = False


def _forget_source(name: str) -> None:
    linecache.cache.pop(name, None)
    _source_loader.eval_cache.pop(name, None)


__all__ = [
    "FAKE_TENSOR_ERRORS",
    "GLOBAL_HOOKS",
    "MODULE_CALL",
    "NATIVE_FUNCTIONS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "InferenceMode",
    "OpOverload",
    "OpOverloadPacket",
    "TensorBase",
    "forget_source_with",
    "get_tracing_state",
    "is_autocast_available",
    "is_torch_function_mode_enabled",
    "log_api_usage_once",
    "private_backend_name",
    "set_grad_enabled",
    "torch_dispatch_modes",
    "torch_function_modes",
]
