"""A fake mode that loads torch's compiler only where torch has to compute something on fakes.

torch's own ``FakeTensorMode`` and ``ShapeEnv`` import ``torch._dynamo`` when they are made or called first,
which takes longer than capturing a model.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nested._internal.nested_tensor
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from .fakes import FakeForm, FakeLayout, hold_constant
from .symbols import import_apart, import_what_fake_tensors_need
from .without_compiler import (
    COMPILER,
    needs_no_compiler,
    references_as_they_are,
    without_compiler,
)

_KNOWN_CONSTRUCTORS = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""The torch versions whose fake modes have the attributes below; others make theirs by themselves."""


def _setting(place: str, name: str, default: bool) -> bool:
    """A setting of fake tensors; ``default`` while its module is not loaded, so that none can have set it."""
    module = sys.modules.get(place)
    return default if module is None else bool(getattr(module, f"fake_tensor_{name}"))


_FUNCTORCH = "torch._functorch.config"
_DYNAMO = "torch._dynamo.config"


class EnvironmentOnDemand:
    """The ShapeEnv of one capture, which ``make`` makes when something symbolic needs it."""

    def __init__(self, make: Callable[[], ShapeEnv]) -> None:
        self._make = make
        self.made: ShapeEnv | None = None

    def get(self) -> ShapeEnv:
        """The ShapeEnv, the same each time."""
        if self.made is None:
            self.made = self._make()
        return self.made


class FakeModeOnDemand(FakeTensorMode):
    """torch's fake mode with a ShapeEnv on demand, or with the one given, or none.

    The arguments are as of torch's own.
    """

    def __init__(
        self,
        *,
        shape_env: EnvironmentOnDemand | ShapeEnv | None = None,
        static_shapes: bool | None = None,
        allow_non_fake_inputs: bool = False,
    ) -> None:
        self._forms: dict[tuple[FakeLayout, bool], FakeForm] = {}
        static = shape_env is None if static_shapes is None else static_shapes
        version = ".".join(torch.__version__.split(".")[:2])
        real = _setting(_FUNCTORCH, "propagate_real_tensors", False)
        if version in _KNOWN_CONSTRUCTORS and not real:
            self._begin(static, allow_non_fake_inputs)
        else:
            super().__init__(static_shapes=static, allow_non_fake_inputs=allow_non_fake_inputs)
        if isinstance(shape_env, EnvironmentOnDemand):
            self._on_demand = shape_env
            del self.shape_env  # read from now on by __getattr__
        else:
            self.shape_env = shape_env

    def _begin(self, static_shapes: bool, allow_non_fake_inputs: bool) -> None:
        """What torch's constructor does, without loading settings and without reading the stack's lines."""
        TorchDispatchMode.__init__(self)
        self.allow_fallback_kernels = True
        self.propagate_real_tensors = False
        self.fake_tensor_converter = FakeTensorConverter(copy_data=False, export=False)
        self.static_shapes = static_shapes
        self.allow_scalar_outputs = False
        read: Any = os.environ.get
        allowed = _setting(_FUNCTORCH, "allow_unsafe_data_ptr_access", True)
        self._allow_unsafe_data_ptr_access = allowed
        meta = read("FAKE_ALLOW_META", "1") != "0"
        self.allow_meta = _setting(_FUNCTORCH, "allow_meta", meta)
        cache = read("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "1") == "1"
        self.cache_enabled = _setting(_DYNAMO, "cache_enabled", cache)
        cross = read("TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK", "0") == "1"
        self.cache_crosscheck_enabled = _setting(_DYNAMO, "cache_crosscheck_enabled", cross)
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self.in_kernel_invocation = False
        self.enter_stack = []
        self.shape_env = None
        self._stack_trace = traceback.StackSummary()
        self._stack = None
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        count = torch.nested._internal.nested_tensor._tensor_id_counter
        self.nt_tensor_id_initial_count = self.nt_tensor_id_counter = count

    @functools.cached_property
    def avoid_device_init(self) -> bool:
        """As torch's own, which asks for every device each time that the mode is entered."""
        avoids = bool(super().avoid_device_init)
        if avoids and _GUARD_ENDS_WITH_THREAD:
            _make_lasting_guard()
        return avoids

    def __getattr__(self, name: str) -> Any:
        if name != "shape_env":
            raise AttributeError(name)
        self.shape_env = self._on_demand.get()
        return self.shape_env

    def from_tensor(self, tensor: torch.Tensor, **options: Any) -> FakeTensor:
        """The fake that stands for ``tensor``, whose making imports torch's compiler if there is none yet."""
        if options == {"static_shapes": True}:
            known = self.fake_tensor_converter._get_memo(tensor)
            if known is not None:
                return known
        import_what_fake_tensors_need()
        return super().from_tensor(tensor, **options)

    def new_fake(self, layout: FakeLayout) -> FakeTensor:
        """A fake of that layout in memory of its own, as ``empty_strided`` and ``as_strided`` give it."""
        whole = None
        if layout.offset:
            is_empty = 0 in layout.shape
            spans = ((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))
            count = layout.offset + (0 if is_empty else 1 + sum(spans))
            whole = self.new_fake(FakeLayout((count,), (1,), 0, layout.dtype, layout.device))
        key = layout, torch.is_inference_mode_enabled()
        with torch._C._DisableTorchDispatch():
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = FakeForm(self, layout)
            return form.new(whole)

    def fake_of_literal(self, tensor: torch.Tensor) -> FakeTensor | None:
        """The fake of a number that a program has just made a tensor of, as ``lift_fresh`` gives it.

        None where there is more to it than a dtype, a layout and a value that is known.
        """
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return None
        if tensor.device.type != "cpu" or tensor.requires_grad or not self.may_turn_const(tensor):
            return None
        if tensor.is_inference() != torch.is_inference_mode_enabled():
            return None
        fake = self.new_fake(FakeLayout.of_plain(tensor))
        with torch._C._DisableTorchDispatch():
            value = tensor.clone()
        hold_constant(self, fake, value)
        return fake

    def view_of(
        self, tensor: FakeTensor, sizes: Sequence[Any], strides: Sequence[Any], offset: Any
    ) -> FakeTensor:
        """A view of a tensor with symbolic sizes, in elements; as ``as_strided`` gives it."""
        return _view(self, _AS_STRIDED, tensor, sizes, strides, offset)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: captures run where torch compiles no frame, so it need not be told to leave this alone."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.dispatch(func, types, args, kwargs or {})

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch computes of an operator on fakes, which reads settings of its compiler."""
        kwargs = kwargs or {}
        if func in _DIRECTLY and COMPILER not in sys.modules and not (kwargs or _is_known(args[0])):
            return _DIRECTLY[func](self, func, *args)
        if func in _DIRECT and not kwargs and any(map(_is_symbolic, args)):
            return _view(self, func, *args)
        if COMPILER not in sys.modules:
            if needs_no_compiler(func, args, kwargs):
                import_apart(_COMPOSED)
            else:
                import_what_fake_tensors_need()
        return super().dispatch(func, types, args, kwargs)

    def _cached_dispatch_impl(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """As torch's, but in inference mode: what torch keeps of a view makes no view of other tensors.

        Nor without torch's compiler: what torch keeps is found by the ShapeEnv, which would be made for it.
        """
        if torch.is_inference_mode_enabled() or COMPILER not in sys.modules:
            return self._dispatch_impl(func, types, args, kwargs)
        return super()._cached_dispatch_impl(func, types, args, kwargs)

    def _dispatch_impl(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if COMPILER in sys.modules:
            return super()._dispatch_impl(func, types, args, kwargs)
        with references_as_they_are():
            return _dispatch_without_compiler(self, func, types, args, kwargs)


def _make_lasting_guard() -> None:
    """Have a thread that lives on make the guard of devices that torch puts where there are none.

    Modes make it when they are entered first, and torch 2.11 frees it with the thread that did: what
    enters one afterwards is a segmentation fault.
    """
    with _MAKING:
        if _MADE.is_set():
            return
        if threading.current_thread() is threading.main_thread():
            _make_guard()
        else:
            threading.Thread(target=_make_guard_and_live_on, daemon=True).start()
            _MADE.wait()


def _make_guard() -> None:
    torch._C._ensureCUDADeviceGuardSet()
    _MADE.set()


def _make_guard_and_live_on() -> None:
    _make_guard()
    threading.Event().wait()


_GUARD_ENDS_WITH_THREAD = torch.__version__ < "2.12" and torch.backends.cuda.is_built()
_MAKING, _MADE = threading.Lock(), threading.Event()


def _is_symbolic(argument: Any) -> bool:
    """Whether an operand's sizes are symbolic."""
    return isinstance(argument, FakeTensor) and bool(argument._has_symbolic_sizes_strides)


def _is_known(argument: Any) -> bool:
    """Whether the value of a fake tensor is known, and so may be what is computed of it."""
    return isinstance(argument, FakeTensor) and argument.constant is not None


def _view(
    mode: FakeModeOnDemand, operator: OpOverload, tensor: FakeTensor, *arguments: Any
) -> FakeTensor:
    """What torch's kernel for the meta device gives, by which its mode computes a view."""
    with in_kernel_invocation_manager(mode):
        view = operator(tensor, *arguments)
    wrap: Any = mode.wrap_meta_outputs_with_default_device_logic
    made: FakeTensor = wrap(view, operator, [tensor], None)
    return made


def _by_rule(mode: FakeModeOnDemand, operator: OpOverload, *arguments: Any) -> Any:
    """What torch's rule gives; where a mode asks for what it calls, torch imports no classes of tensors."""
    with references_as_they_are(), mode:
        return op_implementations_dict[operator](mode, operator, *arguments)


_COMPOSED = "torch._higher_order_ops.utils"
"""What torch's mode imports when it computes its first result."""

_dispatch_without_compiler = without_compiler(FakeTensorMode._dispatch_impl)

_AS_STRIDED = torch.ops.aten.as_strided.default
_DETACH = torch.ops.aten.detach.default
_DIRECT = frozenset({_AS_STRIDED, _DETACH, torch.ops.aten.alias.default})
"""Views whose kernels for the meta device take symbols."""

_DIRECTLY: dict[OpOverload, Callable[..., Any]] = {_AS_STRIDED: _view, _DETACH: _view}
"""Operators that fakes of inputs, loops and layers need, as torch computes them, without its settings."""

_BY_RULES = torch.ops.aten.select.int, torch.ops.aten.native_layer_norm.default
_DIRECTLY |= {operator: _by_rule for operator in _BY_RULES if operator in op_implementations_dict}


def made_environment(mode: FakeTensorMode) -> ShapeEnv | None:
    """The ShapeEnv of a mode; None where it has none or has not needed one yet."""
    on_demand = getattr(mode, "_on_demand", None)
    return on_demand.made if isinstance(on_demand, EnvironmentOnDemand) else mode.shape_env
