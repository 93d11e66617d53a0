"""Everything private of torch that capture reaches, with the modules beside.  Checked on torch 2.13."""

from __future__ import annotations

import importlib
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import _native_multi_head_attention as native_multi_head_attention
from torch import _pack_padded_sequence as pack_padded_sequence
from torch import _pad_packed_sequence as pad_packed_sequence
from torch._C import TensorBase, _functorch
from torch._C import _DisableTorchDispatch as DisableTorchDispatch
from torch._C import _get_function_stack_at as torch_function_mode_at
from torch._C import _get_privateuse1_backend_name as private_backend_name
from torch._C import _group_tensors_by_device_and_dtype as group_tensors
from torch._C import _InferenceMode as InferenceMode
from torch._C import _is_autocast_available as is_autocast_available
from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
from torch._C import _len_torch_dispatch_stack as torch_dispatch_modes
from torch._C import _len_torch_function_stack as torch_function_modes
from torch._C import _log_api_usage_once as log_api_usage_once
from torch._C import _pop_torch_function_stack as pop_torch_function_mode
from torch._C import _push_on_torch_function_stack as push_torch_function_mode
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop
from torch._library.custom_ops import OPDEFS as CUSTOM_OPERATORS
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._prims_common import suggest_memory_format as suggested_format
from torch._refs import expand as checked_expand
from torch.distributions.utils import _lazy_property_and_property as LazyPropertyOfClass
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.graph_module import _loader as _source_loader
from torch.nn.modules._functions import BackwardHookFunction
from torch.optim.optimizer import _get_value as optimizer_value
from torch.optim.optimizer import _stack_if_compiling as optimizer_values
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from weft_guards import note_faithful_hook

from . import beside as beside  # read by the frame hook

__all__ = [
    "BackwardHookFunction", "DeviceContext", "DisableTorchDispatch", "HigherOrderOperator", "InferenceMode",
    "LazyPropertyOfClass", "OpOverload", "OpOverloadPacket", "TensorBase",
    "associative_scan", "checked_expand", "enable_python_dispatcher", "group_tensors",
    "is_autocast_available", "is_torch_function_mode_enabled", "log_api_usage_once",
    "native_multi_head_attention", "optimizer_value", "optimizer_values", "pack_padded_sequence",
    "pad_packed_sequence", "patch_step_function", "pop_torch_function_mode", "private_backend_name",
    "push_torch_function_mode", "pytree", "set_grad_enabled", "suggested_format",
    "torch_dispatch_modes", "torch_function_mode_at", "torch_function_modes", "while_loop",
]  # fmt: skip

patch_step_function: Any = torch.optim.Optimizer._patch_step_function


def same_dispatch(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the dispatcher takes two tensors for the same kind."""
    return bool(torch._C._dispatch_key_set(left) == torch._C._dispatch_key_set(right))


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly if they share storage; sparse ones share none."""
    if tensor.layout is not torch.strided:
        return -id(tensor)
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def argument_names(operator: OpOverload) -> list[str]:
    """The names of an operator's arguments, in the schema's order."""
    return [str(argument.name) for argument in operator._schema.arguments]


def written_operands(operator: OpOverload) -> list[int]:
    """The positions of an operator's arguments that it may write to."""
    arguments = operator._schema.arguments
    return [
        k for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
    ]


def count_list_writes(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Move the version counters of tensors in lists that an operator writes to.

    Autograd moves those of tensors that are arguments themselves; those in lists move as each is written to
    by an operator of its own, which a fake is not (``_foreach_mul_``).
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        return
    arguments = operator._schema.arguments
    for k in written_operands(operator):
        given = args[k] if k < len(args) else kwargs.get(arguments[k].name)
        if isinstance(given, (list, tuple)):
            torch.autograd.graph.increment_version([t for t in given if not t.is_inference()])


def shares_operands(operator: OpOverload) -> bool:
    """Whether an operator's results may be in the memory of its arguments, as its schema says."""
    return any(result.alias_info is not None for result in operator._schema.returns)


default_device: Callable[[], str] = torch._C._get_default_device


WithoutOverrides: Any = torch._C.DisableTorchFunctionSubclass  # declared as a function


NATIVE_FUNCTIONS = tuple(getattr(torch._C, name) for name in ("_nn", "_fft", "_linalg", "_special"))
"""Where operators' Python functions are, beside the namespace ``torch`` itself."""

pad_sequence = torch._C._nn.pad_sequence


assert_tensor_metadata = torch._assert_tensor_metadata


GLOBAL_HOOKS = {
    name: getattr(torch.nn.modules.module, f"_global{name}")
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
}
"""The hooks of all modules, by the name of a module's own."""

HOOKED_CALL = "_call_impl"
"""The method by which a module's ``__call__`` runs hooks and ``forward``."""


TRACING_QUERIES: dict[Any, Any] = {
    torch._C._get_tracing_state: None,
    getattr(torch._C, "_is_tracing", None): False,  # what modules ask since torch 2.15
}
"""What asks whether ``torch.jit.trace`` runs, and its answer if not."""


def python_of_script(function: Any) -> types.FunctionType | None:
    """What ``torch.jit.script`` was given; None for a function of ``torch.jit.trace``, which is not named."""
    source = getattr(function, "_torchdynamo_inline", None)
    is_scripted = getattr(function, "__qualname__", None) == "torch.jit.ScriptFunction"
    return source if is_scripted and isinstance(source, types.FunctionType) else None


OVERRIDE_QUERIES = (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
"""What asks whether any of its arguments has an override."""


safe_softmax: Callable[..., torch.Tensor] = torch._safe_softmax


MODULE_CALL = torch.nn.Module._call_impl.__code__
"""The code of a module's call, around its ``forward``."""


LIST_FUNCTIONS: dict[Any, str] = {
    getattr(torch, f"_foreach_{name}{end}"): f"{method}{end}"
    for name, method in {
        **{name: name for name in ("add", "sub", "mul", "div", "lerp", "addcdiv", "addcmul")},
        **dict.fromkeys(("clamp_min", "maximum"), "clamp_min"),
        **dict.fromkeys(("clamp_max", "minimum"), "clamp_max"),
    }.items()
    for end in ("", "_")
}
"""Functions of lists of tensors and of numbers, and the method of one tensor."""


unscale_gradients: Callable[..., None] = torch._amp_foreach_non_finite_check_and_unscale_
"""By it a ``GradScaler`` multiplies gradients by a number, and learns whether all were finite."""


def without_saved_tensor_hooks() -> AbstractContextManager[Any]:
    """Within it none of the program's hooks sees what autograd saves; writes to that are errors still."""
    autograd: Any = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_with_version, _if_unchanged)


def _with_version(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    return tensor, 0 if tensor.is_inference() else tensor._version


def _if_unchanged(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """What autograd itself checks where there are no hooks."""
    tensor, version = saved
    if _with_version(tensor)[1] != version:
        raise RuntimeError(f"a saved tensor was modified by an inplace operation: {tensor!r}")
    return tensor


note_faithful_hook(_with_version)


push_saved_tensor_hooks: Callable[..., None] = torch._C._autograd._push_saved_tensors_default_hooks
"""From its call on hooks are given what autograd saves."""


def pack_hook() -> Any:
    """The program's hook that would be given each tensor that autograd saves now; None without one."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]


def mode_of_the_program() -> str | None:
    """The class of a mode on torch's stacks that may change what operators do; None if there is none.

    Other than that of the default device, which operators are captured under.
    """
    for position in range(torch_function_modes()):
        mode = torch_function_mode_at(position)
        if not isinstance(mode, DeviceContext):
            return type(mode).__qualname__
    if torch_dispatch_modes():
        return "TorchDispatchMode"
    return None


def without_overrides() -> AbstractContextManager[None]:
    """No ``__torch_function__`` of a tensor's class runs inside."""
    context: AbstractContextManager[None] = WithoutOverrides()
    return context


def has_overrides(kind: type) -> bool:
    """Whether a tensor's class has a ``__torch_function__`` that torch asks."""
    function: Any = getattr(kind, "__torch_function__", None)
    return function is not None and function is not torch._C._disabled_torch_function_impl


def is_dispatching_class(kind: type) -> bool:
    """Whether a tensor's class overrides operators below autograd, or holds other tensors."""
    function: Any = getattr(kind, "__torch_dispatch__", None)
    return function is not torch.Tensor.__torch_dispatch__


def is_uninitialized(tensor: torch.Tensor) -> bool:
    """Whether a lazy module is still to say the tensor's size."""
    return isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))


class CapturedModule(_LazyGraphModule):
    """A graph module whose code is generated when it is asked for, which weft's own stages do not.

    The text of the code goes with the module; torch.fx keeps it for good, for tracebacks.
    """

    @property
    def _lazy_forward(self) -> Any:
        self.real_recompile()
        return self.forward

    forward = _lazy_forward

    def _real_recompile(self) -> Any:
        code = super()._real_recompile()
        source = self.forward.__code__.co_filename
        weakref.finalize(self, _forget_source, source).atexit = False
        return code


def _forget_source(name: str) -> None:
    linecache.cache.pop(name, None)
    _source_loader.eval_cache.pop(name, None)


@dataclass(frozen=True)
class TorchMarks:
    """Attributes by which torch's own functions mark a tensor's dimensions.

    ``dynamic`` maps each attribute that holds dimensions to the least size that it says (None: none).
    """

    dynamic: dict[str, int | None] = field(
        default_factory=lambda: {
            "_dynamo_dynamic_indices": None,
            "_dynamo_unbacked_indices": 0,
            "_dynamo_strict_unbacked_indices": 0,
        }
    )
    ranges: str = "_dynamo_dynamic_range"  # entries with dim, min and max
    bounds: str = (
        "_dynamo_unbacked_bounds"  # least and greatest size by dimension, since torch 2.12
    )
    static: str = "_dynamo_static_indices"
    preferred: str = "_dynamo_weak_dynamic_indices"  # of maybe_mark_dynamic


TORCH_MARKS = TorchMarks()


def has_constant_result(function: Any) -> bool:
    """Whether ``torch.compiler.assume_constant_result`` was given the function."""
    return getattr(function, "_dynamo_marked_constant", False) is True


def substitute_of(function: Any) -> types.FunctionType | None:
    """What a program gave ``torch.compiler.substitute_in_graph`` for the function; not torch's own polyfills.

    torch keeps them in a table of its own capture, which it has loaded then.
    """
    module = sys.modules.get("torch._dynamo.variables.functions")
    owner = getattr(module, "PolyfilledFunctionVariable", None)
    table: dict[Any, Any] = getattr(owner, _POLYFILL_TABLE, dict)()
    found = getattr(table.get(function), "__torch_dynamo_polyfill__", None)
    is_torchs = getattr(found, "__module__", "").partition(".")[0] == "torch"
    return found if isinstance(found, types.FunctionType) and not is_torchs else None


_POLYFILL_TABLE = "_get_polyfill_handlers"


def calls_nested_region(function: Any) -> bool:
    """Whether it is what a function with the mark ``nested_compile_region`` calls with its own body."""
    module = sys.modules.get("torch._higher_order_ops.invoke_subgraph")
    return module is not None and function is getattr(module, "invoke_subgraph_placeholder", None)


def python_kernels(operator: Any) -> tuple[types.FunctionType, ...]:
    """The functions that ``torch.library.custom_op`` was given for an operator, or an overload of one."""
    if isinstance(operator, OpOverload):
        name = operator.name().partition(".")[0]
    elif isinstance(operator, OpOverloadPacket):
        name = operator._qualified_op_name
    else:
        return ()
    known = CUSTOM_OPERATORS.get(name)
    found = () if known is None else (known._init_fn, *known._backend_fns.values())
    return tuple(f for f in found if isinstance(f, types.FunctionType))


def is_allowed_in_graph(function: Any) -> bool:
    """Whether ``torch.compiler.allow_in_graph`` was given the function.

    That keeps such functions' identities where torch's own capture reads them, which it has loaded then.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    allowed = getattr(rules, "_allowed_callable_ids", ())
    return id(function) in allowed and not is_nonstrict(function)


def is_nonstrict(function: Any) -> bool:
    """Whether it is a wrapper of ``nonstrict_trace``, which takes and gives containers of any kind."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return id(function) in getattr(rules, "_nonstrict_trace_callable_ids", ())


OPAQUE_METACLASSES: tuple[type, ...] = tuple(
    {type(torch.distributed.ProcessGroup)} - {type} if torch.distributed.is_available() else ()
)
"""Metaclasses whose ``isinstance()`` looks through torch's stand-ins, which programs do not see."""


def functional_collectives() -> Any:
    """The module of torch's functional collectives; importing it registers their gradients and fakes."""
    return importlib.import_module("torch.distributed._functional_collectives")


def flexible_attention() -> Any:
    """The module of ``flex_attention`` and its block masks."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def distributed_functions() -> Any:
    """The module that ``torch.distributed``'s functions are written in."""
    return importlib.import_module("torch.distributed.distributed_c10d")


def finished_work() -> Any:
    """A handle of a collective that has ended."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    native: Any = torch._C._distributed_c10d
    return native._create_work_from_future(future)


APPLY: Any = vars(torch.autograd.Function)["apply"]
"""``autograd.Function.apply`` as its class holds it: a class method, written in C since torch 2.14."""


APPLY_TAKES_KEYWORDS = torch.__version__ >= "2.13"
"""Whether ``autograd.Function.apply`` hands keyword arguments on to a forward without a context."""


def runs_in_backward() -> bool:
    """Whether autograd's engine calls this, on this thread."""
    return bool(torch._C._current_graph_task_id() >= 0)


def is_process_group_made() -> bool:
    """Whether wrappers of modules may have hooks at the nodes that add up gradients."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


ASARRAY_KEEPS_FLAG = torch.__version__ >= "2.13"
"""Whether ``asarray`` of a tensor leaves its ``requires_grad`` where it is given none; else it clears it."""
