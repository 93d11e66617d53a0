"""Everything private of torch that this package uses.  Checked on torch 2.13.0 (Linux, x86-64).

The native readings rest on torch's C interface and on names and offsets found at run time;
:func:`connect` compares them with torch's own answers before anything relies on them.  Where they
differ or something is missing, the checks that would use them run in Python.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch._C._autograd import _top_saved_tensors_default_hooks as innermost_hooks
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._sympy.functions import CeilDiv as CeilDiv
from torch.utils._sympy.functions import CleanDiv as CleanDiv
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.functions import Max as Max
from torch.utils._sympy.functions import Min as Min
from torch.utils._sympy.functions import Mod as Mod
from torch.utils._sympy.functions import PowByNatural as PowByNatural
from torch.utils._sympy.functions import PythonMod as PythonMod
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges
from torch.utils._sympy.value_ranges import bound_sympy as bound_sympy

if TYPE_CHECKING:
    from .global_state import GlobalState

_Key: Any = torch._C.DispatchKey
_KeySet: Any = torch._C.DispatchKeySet
_TRACER: Any = torch._C._parse_dispatch_key("Tracer")  # the one key without a name in the class


def _raw_keys(*names: str) -> int:
    """The bits of dispatch keys by name, without the bits of backends."""
    backend: int = _KeySet(_Key.CPU).raw_repr() & ~_KeySet(_Key.Dense).raw_repr()
    bits: int = 0
    for name in names:
        bits |= _KeySet(torch._C._dispatch_key_parse(name)).raw_repr()
    return bits & ~backend


# Wrappers that have the Python type of a plain tensor: of functorch's transforms, of the older vmap by
# which autograd batches gradients, of C++ functionalization, and of the zeros that autograd makes without
# memory.
_WRAPPERS = _raw_keys(
    "FuncTorchBatched", "FuncTorchGradWrapper", "Batched", "Functionalize", "ZeroTensor"
)
_CONJUGATE = _raw_keys("Conjugate")
_NEGATIVE = _raw_keys("Negative")
_PLACE_OR_VIEW = _raw_keys("ADInplaceOrView")
_OTHER_KINDS = _raw_keys("Python", "NestedTensorCPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU")
KEY_MASK = _WRAPPERS | _CONJUGATE | _NEGATIVE | _PLACE_OR_VIEW | _OTHER_KINDS


def python_source(expression: Any) -> str:
    """A SymPy expression with torch's functions in it as Python; names of symbols, ``math`` and ``torch``."""
    return str(PythonPrinter().doprint(expression))  # type: ignore[no-untyped-call, unused-ignore]


def dispatch_keys(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def device_index(device: torch.device) -> int:
    """The device's index as torch's C interface gives it: -1 for none."""
    index: Any = device.index  # declared as never None
    return -1 if index is None else int(index)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a transform or autograd stands in front of the tensor's memory."""
    return bool(dispatch_keys(tensor) & _WRAPPERS)


def without_torch_function() -> AbstractContextManager[None]:
    """No ``__torch_function__`` runs inside, neither of a subclass nor of a mode."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


def torch_function_modes() -> int:
    return int(torch._C._len_torch_function_stack())


def default_device() -> str | None:
    """The device that a mode on the stack gives to new tensors; None when there is no such mode.

    Read from the stack, because ``torch.get_default_device`` runs the modes on it.
    """
    for position in reversed(range(torch_function_modes())):
        mode = torch._C._get_function_stack_at(position)
        if isinstance(mode, DeviceContext):
            return _with_current_index(mode.device)
    return None


def _with_current_index(device: torch.device) -> str:
    accelerator = torch.accelerator.current_accelerator()
    if device_index(device) >= 0 or accelerator is None or device.type != accelerator.type:
        return str(device)
    with without_torch_function():
        return f"{device.type}:{torch.accelerator.current_device_index()}"


def torch_dispatch_modes() -> int:
    return int(torch._C._len_torch_dispatch_stack())


def transform_active() -> bool:
    """Whether tensors may stand for others: in a functorch transform, in a trace, or with dual tensors about.

    A transform (vmap, grad, ...) and a trace (``torch.jit.trace``, which records operators and knows
    nothing of a compiled program) run in one thread; a level of forward-mode gradients is the process's.
    """
    included = torch._C._dispatch_tls_is_dispatch_key_included
    if included(_Key.FuncTorchDynamicLayerFrontMode) or included(_TRACER):
        return True
    return forward_ad._current_level >= 0


def saved_tensors_hooked() -> bool:
    """Whether hooks for saved tensors are set that may change what backward is given.

    Not those of checkpoints and of ``save_on_cpu``: whatever is saved, they give the same values back.
    """
    hooks: tuple[Any, Any] | None = innermost_hooks(True)
    if hooks is None:
        return False
    # One of the two is enough: torch 2.13 decorates one of a checkpoint's.
    return all(getattr(hook, "__code__", None) not in _FAITHFUL_HOOKS for hook in hooks)


def note_faithful_hook(hook: Callable[..., Any]) -> None:
    """Say that a hook for saved tensors gives values back as they were: what it is given doesn't matter."""
    _FAITHFUL_HOOKS.add(hook.__code__)  # of a function


def _faithful_hooks_of_torch() -> Iterator[types.CodeType]:
    """Each is a function that its manager makes."""
    for manager in (
        torch.autograd.graph.save_on_cpu,
        getattr(torch.utils.checkpoint, "_checkpoint_hook", None),
        getattr(torch.utils.checkpoint, "_recomputation_hook", None),
    ):
        code = getattr(getattr(manager, "__init__", None), "__code__", None)
        for constant in () if code is None else code.co_consts:
            if isinstance(constant, types.CodeType):
                yield constant


_FAITHFUL_HOOKS = set(_faithful_hooks_of_torch())


@functools.cache
def autocast_devices() -> tuple[str, ...]:
    """The device types whose autocast state counts: the CPU, CUDA and this machine's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu", "cuda"]
    if accelerator is not None and accelerator.type not in devices:
        devices.append(accelerator.type)
    return tuple(name for name in devices if torch.amp.is_autocast_available(name))


# ---- native readings ----


@dataclass(frozen=True)
class NativeTorch:
    """torch's numbers for dtypes, layouts and device types, as the native check compares them."""

    dtypes: dict[torch.dtype, int]
    layouts: dict[torch.layout, int]
    device_types: dict[str, int]


def _sample_tensors() -> list[torch.Tensor]:
    """Plain tensors that differ in all that is read."""
    with torch.inference_mode():
        inference = torch.empty(3)
    complex_tensor = torch.empty(2, 3, dtype=torch.complex64)
    return [
        torch.empty(()),
        torch.empty(2, 3, 5).transpose(0, 2),
        torch.empty(4, dtype=torch.int64).expand(3, 4),
        torch.empty(0, 7, dtype=torch.bool),
        torch.empty(5, 2, device="meta", requires_grad=True),
        torch.nn.Parameter(torch.empty(6, dtype=torch.float64)),
        torch.nn.Parameter(torch.empty(1), requires_grad=False),
        complex_tensor,
        complex_tensor.conj(),
        complex_tensor.conj().imag,
        inference,
        torch.empty(2, requires_grad=True) * 2,
        torch.empty(7, dtype=torch.int16)[3:],
    ]


def _known_dtypes() -> Iterator[torch.dtype]:
    """Those of plain tensors, but for complex of two halves, which warn once a process when used."""
    values = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for value in sorted(values, key=str):
        is_quantized = str(value).startswith("torch.q")
        if not is_quantized and not (value.is_complex and value.itemsize == 4):
            yield value


def _tables(native: ModuleType) -> NativeTorch:
    dtypes: dict[torch.dtype, int] = {}
    for dtype in _known_dtypes():
        try:
            sample = torch.empty(0, dtype=dtype, device="meta")
        except (RuntimeError, TypeError):  # a dtype that no plain tensor has (quantized ones)
            continue
        dtypes[dtype] = native.read_tensor(sample)[0]
    sample = torch.empty(0)
    reading = native.read_tensor(sample)
    device_types = {"cpu": reading[1], "meta": native.read_tensor(torch.empty(0, device="meta"))[1]}
    device_types.update(native.device_types())
    return NativeTorch(dtypes, {torch.strided: reading[3]}, device_types)


def _tensor_difference(native: ModuleType, tables: NativeTorch, tensor: torch.Tensor) -> str | None:
    expected = (
        tables.dtypes[tensor.dtype],
        tables.device_types[tensor.device.type],
        device_index(tensor.device),
        tables.layouts[tensor.layout],
        dispatch_keys(tensor),
        tensor.requires_grad,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.data_ptr() and tensor.data_ptr() - tensor.storage_offset() * tensor.element_size(),
    )
    found = native.read_tensor(tensor)
    return None if found == expected else f"a tensor reads as {found} instead of {expected}"


def plain_keys(is_conjugate: bool, is_negative: bool, is_inference: bool) -> int:
    """What a plain strided tensor has of :data:`KEY_MASK`."""
    keys = 0 if is_inference else _PLACE_OR_VIEW
    return keys | (_CONJUGATE if is_conjugate else 0) | (_NEGATIVE if is_negative else 0)


def allowed_libraries() -> tuple[bool, ...]:
    """Which kernels ``scaled_dot_product_attention`` may choose, then whether cuDNN and oneDNN are on."""
    return (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_mkldnn_enabled(),
    )


def global_state_numbers(
    state: GlobalState, tables: NativeTorch
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | None:
    """The state as the native check compares it; None where numbers can't tell all of it."""
    if state.torch_function_modes or state.default_device is not None:
        return None  # a mode may set the default device, which only Python knows
    fields = (
        state.grad_enabled,
        state.inference_mode,
        state.autocast_cache_enabled,
        tables.dtypes.get(state.default_dtype),
        state.deterministic_algorithms,
        state.torch_function_modes,
        state.torch_dispatch_modes,
        state.transform_active,
        sum(allowed << bit for bit, allowed in enumerate(state.allowed_libraries)),
        state.saved_tensors_hooked,
    )
    devices = [
        (tables.device_types.get(name), enabled, tables.dtypes.get(dtype))
        for name, enabled, dtype in state.autocast
    ]
    if [name for name, _, _ in state.autocast] != list(autocast_devices()):
        return None
    numbers = [number for entry in (fields, *devices) for number in entry if number is not None]
    if len(numbers) != len(fields) + 3 * len(devices) or len(devices) > 4:
        return None  # a dtype or device type without a number
    numbers = [int(number) for number in numbers]
    rest = numbers[len(fields) :]
    return (
        tuple(numbers[: len(fields)]),
        tuple(tuple(rest[3 * i : 3 * i + 3]) for i in range(len(devices))),
    )


def _state_difference(
    native: ModuleType, tables: NativeTorch, current: Callable[[], GlobalState]
) -> str | None:
    contexts: list[AbstractContextManager[Any]] = [
        nullcontext(),
        torch.no_grad(),
        torch.enable_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
        forward_ad.dual_level(),
        torch._C._IncludeDispatchKeyGuard(_TRACER),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        torch.autograd.graph.save_on_cpu(),
    ]
    for context in contexts:
        with context, without_torch_function():
            expected = global_state_numbers(current(), tables)
            if expected is None:
                return "the global state has no numbers"
            found = native.read_global_state(tuple(device for device, _, _ in expected[1]))
        if found != expected:
            return f"the global state reads as {found} instead of {expected}"
    return None


def connect(native: ModuleType, current: Callable[[], GlobalState]) -> NativeTorch | str:
    """Connect the extension to the loaded torch and test what it reads; a sentence when it can't."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    with ExitStack() as stack:
        # The samples must be plain tensors whatever modes this thread is in.
        stack.enter_context(torch._C._DisableTorchDispatch())
        stack.enter_context(without_torch_function())
        samples = _sample_tensors()
        described = tuple((tensor, tensor._cdata, dispatch_keys(tensor)) for tensor in samples)
        keys = int(_Key.FuncTorchDynamicLayerFrontMode), int(_TRACER)
        dual_levels = vars(forward_ad)  # with the level in ``_current_level``
        problem: str | None = native.connect(
            library, described, keys, dual_levels, innermost_hooks, _FAITHFUL_HOOKS
        )
        if problem is not None:
            return problem
        tables = _tables(native)
        for tensor in samples:
            problem = _tensor_difference(native, tables, tensor)
            if problem is not None:
                return problem
    problem = _state_difference(native, tables, current)
    return tables if problem is None else problem
