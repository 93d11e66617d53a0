"""What capture reaches of torch's fake tensors."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from . import pytree
from .symbols import size_in_some_call

__all__ = [
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedFakeTensorException",
]


class FakeLayout(NamedTuple):
    """What a plain strided fake tensor looks like; ``offset`` in elements, as ``strides``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, fake: FakeTensor) -> FakeLayout:
        """That of ``fake``: strided, with sizes that are numbers."""
        return cls(
            tuple(fake.shape),
            fake.stride(),
            int(fake.storage_offset()),
            fake.dtype,
            fake.fake_device,
        )

    @classmethod
    def of_plain(cls, tensor: torch.Tensor) -> FakeLayout:
        """That of the fake of a plain leaf."""
        offset = int(tensor.storage_offset())
        return cls(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, tensor.device)


class FakeForm:
    """Makes fake tensors of one layout at a tenth of what computing them costs.

    Each has memory of its own, or is a view of what ``storage_of`` is in the memory of.  ``span`` is how many
    elements the memory has, for a layout that is symbolic.
    """

    def __init__(
        self, mode: FakeTensorMode, layout: FakeLayout, span: torch.SymInt | int | None = None
    ) -> None:
        self._shape, self._strides, self._offset, self._dtype, self._device = layout
        self._span = span
        self._mark: Callable[[torch.Tensor], None] = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr
        )
        # What torch's own constructor gives each of them.
        self._attributes = dict(FakeTensor(mode, self._elements(None), self._device).__dict__)
        self._attributes[_PLAIN] = True

    def new(self, storage_of: FakeTensor | None = None) -> FakeTensor:
        """Another one; no mode of torch's dispatcher may be active.

        A view is an inference tensor where what it is of is one, as in eager.
        """
        if (
            storage_of is not None
            and storage_of.is_inference() != torch.is_inference_mode_enabled()
        ):
            with torch.inference_mode(storage_of.is_inference()):
                return self._make(storage_of)
        return self._make(storage_of)

    def _make(self, storage_of: FakeTensor | None) -> FakeTensor:
        made: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor,
            self._elements(storage_of),
            False,
            dispatch_device=True,
            device_for_backend_keys=self._device,
        )
        self._mark(made)
        made.__dict__.update(self._attributes)
        return made

    def new_beside_modes(self) -> FakeTensor:
        """Another one with memory of its own, whatever modes are active."""
        with torch._C._DisableTorchDispatch():
            return self.new()

    def _elements(self, storage_of: FakeTensor | None) -> torch.Tensor:
        if storage_of is None and self._span is not None:
            span = torch.empty((self._span,), dtype=self._dtype, device="meta")
            return span.as_strided(self._shape, self._strides)  # which asks nothing about symbols
        if storage_of is None:
            return torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device="meta")
        empty = torch.empty(0, dtype=self._dtype, device="meta")
        storage = storage_of.untyped_storage()
        return empty.set_(storage, self._offset, self._shape, self._strides)


_PLAIN = "_weft_is_plain"
"""Set on fakes that a form has made, which need not be asked for their layout."""


def is_strided(fake: FakeTensor) -> bool:
    """Whether a fake's elements lie in strides and are read as they are, which stays so while it lives."""
    if _PLAIN in fake.__dict__:
        return True
    return fake.layout is torch.strided and not fake.is_conj() and not fake.is_neg()


def read_as_it_is(fake: FakeTensor) -> FakeTensor:
    """``fake``, which torch's converter has made: it may have made a plain one a lazy conjugate or negative.

    The gradient and what a view is of it makes on the way.
    """
    for made in (fake, fake._base, fake.grad if fake.is_leaf else None):
        if isinstance(made, FakeTensor) and (made.is_conj() or made.is_neg()):
            made.__dict__.pop(_PLAIN, None)
    return fake


def computed_constant(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor:
    """What ``operator`` gives on the known values of fake tensors, all of which have one."""
    values = [_constant(value) for value in args]
    named = {name: _constant(value) for name, value in kwargs.items()}
    with torch._C._DisableTorchDispatch():
        result: torch.Tensor = operator(*values, **named)
    return result


def _constant(value: Any) -> Any:
    return value.constant if isinstance(value, FakeTensor) else value


def known_numbers(fake: FakeTensor) -> list[Any]:
    """The known value of ``fake``, which is of one element at most."""
    assert fake.constant is not None
    with torch._C._DisableTorchDispatch():
        return list(fake.constant.flatten().tolist())


def strides_of_kernel(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """The strides of what ``operator`` gives of tensors on the CPU like these fakes; None if it refuses them.

    The tensors are of zeros, so that integers are indices; symbolic numbers are as in some call.
    """
    with torch._C._DisableTorchDispatch():
        values, named = pytree.tree_map(_like_fake, (list(args), dict(kwargs)))
        try:
            result: torch.Tensor = operator(*values, **named)
        except (RuntimeError, NotImplementedError, IndexError):  # as of a dtype without a kernel
            return None
    return tuple(result.stride())


def _like_fake(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape, strides = (
            [size_in_some_call(n) for n in numbers] for numbers in (value.shape, value.stride())
        )
        span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        return torch.zeros(max(span, 0), dtype=value.dtype).as_strided(shape, strides)
    if isinstance(value, torch.SymFloat):
        return 1.0
    return size_in_some_call(value) if isinstance(value, torch.SymInt) else value


def _plain_leaf(mode: FakeTensorMode, tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """What of a tensor that is no view its fake depends on; None where that takes torch's own converter.

    That is where it has more than a dtype, a layout and a device, shares memory with another tensor, or has
    a fake already.
    """
    if type(tensor) not in _PLAIN_KINDS or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.layout is not torch.strided or tensor.device.type not in _PLAIN_DEVICES:
        return None
    if tensor.retains_grad or tensor._is_view():
        return None
    has_names = getattr(tensor, "has_names", None)  # before torch 2.13
    if tensor.is_quantized or (has_names is not None and has_names()):
        return None
    accumulates = tensor.requires_grad and tensor.is_leaf
    if accumulates and getattr(tensor, "grad_dtype", tensor.dtype) != tensor.dtype:
        return None
    storage = tensor.untyped_storage()
    if not tensor.is_contiguous() or storage.nbytes() != tensor.numel() * tensor.element_size():
        return None
    describer = mode.fake_tensor_converter.meta_converter.describer
    if tensor in describer.lookup_tensor or storage in describer.lookup_storage:
        return None
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_inference(), keys


_PLAIN_KINDS = (torch.nn.Parameter, torch.Tensor)
_PLAIN_DEVICES = ("cpu", "cuda")


def fake_of_leaf(
    mode: FakeTensorMode, forms: dict[tuple[Any, ...], FakeForm | None], tensor: torch.Tensor
) -> FakeTensor | None:
    """What ``mode`` has for a plain leaf from now on; None where ``tensor`` is none."""
    if tensor._is_view():
        return _fake_of_view(mode, forms, tensor)
    key = _plain_leaf(mode, tensor)
    if key is None:
        return None
    gradient = None
    if tensor.is_leaf and tensor.grad is not None:
        gradient = _known_or_new(mode, forms, tensor.grad)
        if gradient is None:
            return None
    is_inference = tensor.is_inference()
    if is_inference == torch.is_inference_mode_enabled():
        fake = _fake_of_form(mode, forms, key, tensor)
    else:
        with torch.inference_mode(is_inference):
            fake = _fake_of_form(mode, forms, key, tensor)
    if fake is None:
        return None
    if tensor.requires_grad:
        with torch.inference_mode() if is_inference else contextlib.nullcontext():
            fake.requires_grad = True
    if not tensor.is_leaf:
        fake = as_computed(mode, fake)
    if type(tensor) is torch.nn.Parameter:
        fake._is_param = True
    if gradient is not None:
        fake.grad = gradient
    _remember(mode, tensor, fake)
    return fake


def as_computed(mode: FakeTensorMode, fake: FakeTensor) -> FakeTensor:
    """A leaf as a tensor that has been computed, and is no view: a view of it may be written to."""
    with torch.enable_grad():
        made: FakeTensor = mode.fake_tensor_converter.meta_converter._backward_error(fake)
    return made


def as_view_of(made: FakeTensor, tensor: torch.Tensor) -> torch.Tensor:
    """A fake of gradients as the view that ``tensor`` is, if autograd lets not everybody write to that."""
    meta = torch._C._autograd._get_creation_meta(tensor) if tensor._is_view() else None
    if meta is None or meta == torch._C._autograd.CreationMeta.DEFAULT:
        return made
    with torch.set_grad_enabled(not tensor.is_leaf):
        view = made.view_as(made)
    torch._C._autograd._set_creation_meta(view, meta)
    return view


def _known_or_new(
    mode: FakeTensorMode, forms: dict[tuple[Any, ...], FakeForm | None], tensor: torch.Tensor
) -> FakeTensor | None:
    """The fake that ``mode`` has for a tensor, or has from now on; None as of :func:`fake_of_leaf`."""
    known = mode.fake_tensor_converter._get_memo(tensor)
    return fake_of_leaf(mode, forms, tensor) if known is None else known


def _fake_of_view(
    mode: FakeTensorMode, forms: dict[tuple[Any, ...], FakeForm | None], tensor: torch.Tensor
) -> FakeTensor | None:
    """A view of the fake of a plain base, of which no gradients are asked, as torch's converter makes it."""
    base = tensor._base
    if base is None or type(tensor) is not torch.Tensor or tensor.dtype != base.dtype:
        return None
    if tensor.requires_grad or base.requires_grad or tensor.grad is not None:
        return None
    if tensor.is_inference() or torch.is_inference_mode_enabled():
        return None
    keys = torch._C._dispatch_keys
    if (
        keys(tensor) != keys(base)
        or tensor.untyped_storage()._cdata != base.untyped_storage()._cdata
    ):
        return None
    if tensor in mode.fake_tensor_converter.meta_converter.describer.lookup_tensor:
        return None
    whole = _known_or_new(mode, forms, base)
    if whole is None:
        return None
    with torch.no_grad(), mode:
        fake: Any = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    torch._C._autograd._set_creation_meta(fake, torch._C._autograd._get_creation_meta(tensor))
    mode.fake_tensor_converter.set_tensor_memo(tensor, fake)
    made: FakeTensor = fake
    return made


def _fake_of_form(
    mode: FakeTensorMode,
    forms: dict[tuple[Any, ...], FakeForm | None],
    key: tuple[Any, ...],
    tensor: torch.Tensor,
) -> FakeTensor | None:
    """A new fake, inference tensor as ``tensor`` is; None where the dispatcher treats that as no other."""
    with torch._C._DisableTorchDispatch():
        if key not in forms:
            plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            is_plain = torch._C._dispatch_keys(plain) == torch._C._dispatch_keys(tensor)
            forms[key] = FakeForm(mode, FakeLayout.of_plain(tensor)) if is_plain else None
        form = forms[key]
        return None if form is None else form.new()


def _remember(mode: FakeTensorMode, tensor: torch.Tensor, fake: FakeTensor) -> None:
    """Let the mode find the fake of a tensor again, and that of whatever is in its memory."""
    converter = mode.fake_tensor_converter
    converter.set_tensor_memo(tensor, fake)
    storage = converter.meta_converter.describer.describe_storage(tensor.untyped_storage())
    converter.meta_converter.set_storage_memo(storage, fake.untyped_storage())


def hold_constant(mode: FakeTensorMode, fake: FakeTensor, value: torch.Tensor) -> None:
    """Let ``value`` be the known value of a new fake tensor, whose memory that of ``value`` stands for."""
    fake.constant = value
    _remember(mode, value, fake)
    mode.fake_tensor_converter.add_constant_storage_mapping(fake)


def is_recorded(tensor: torch.Tensor) -> bool:
    """Whether autograd saw how a tensor that requires gradients was made, if it is one of several views
    whose base was written to since, too: of these it raises where it is asked for the history."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return not is_unrecorded_view(tensor)


def is_unrecorded_view(tensor: torch.Tensor) -> bool:
    """Whether this is a view that was made under ``no_grad`` or in inference mode.

    If it requires gradients autograd raises where it is used after a write to what it is of.
    """
    autograd: Any = torch._C._autograd
    unseen = autograd.CreationMeta.NO_GRAD_MODE, autograd.CreationMeta.INFERENCE_MODE
    return tensor._is_view() and autograd._get_creation_meta(tensor) in unseen


@contextlib.contextmanager
def errors_unlogged() -> Iterator[None]:
    """Fake tensors log the traceback of whatever an operator raises; here the caller handles it."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


FAKE_TENSOR_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NotImplementedError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What operators raise that cannot run on fake tensors although their arguments may be right."""

# Of these two torch raises a plain RuntimeError: a kernel that reads a fake tensor's memory (in C++), and an
# operator of ``torch.library.custom_op`` without a fake implementation.
_NEEDS_DATA = "data is not allocated yet"
_NO_FAKE = "no fake impl"


def needs_data(error: Exception) -> bool:
    """Whether an operator raised ``error`` since it needs the values of a fake tensor."""
    by_type = isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode))
    return by_type or _NEEDS_DATA in str(error)


def runs_on_no_fakes(error: Exception) -> bool:
    """Whether an operator raised ``error`` since it cannot be evaluated on fake tensors."""
    return isinstance(error, FAKE_TENSOR_ERRORS) or _NO_FAKE in str(error)


FAKES_TAKE_SIZES_OF_DATA = torch.__version__ >= "2.13"
"""Whether fake tensors are written and sliced without asking for a size that depends on data."""

STEPS_ASK_FOR_SIZES = torch.__version__ < "2.13"
"""Whether the steps in C++ of operators, ``matmul`` among them, ask fakes for sizes that are symbols."""

POOLING_ASKS_FOR_RESTS = torch.__version__ < "2.13"
"""Whether meta functions of pooling ask whether the last window is whole."""
