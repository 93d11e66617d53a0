"""Wrapper tensors: those without data, whose class implements operators in ``__torch_dispatch__``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

make_wrapper: Any = torch.Tensor._make_wrapper_subclass
"""``torch.Tensor._make_wrapper_subclass``."""

_KEYWORDS = frozenset({"strides", "dtype", "device", "layout", "requires_grad", "storage_offset"})

Operator = Callable[[Any, Any, Any], Any]


class StandInTensor(torch.Tensor):
    """Stands for a tensor while an operation runs: hands each operator on to its ``operator``."""

    operator: Operator

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first = next(value for value in _flat([*args, *(kwargs or {}).values()]))
        return first.operator(func, args, kwargs or {})


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, StandInTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def stand_in_like(tensor: torch.Tensor, operator: Operator) -> StandInTensor:
    """A stand-in with a tensor's metadata."""
    made: StandInTensor = make_wrapper(
        StandInTensor,
        tensor.size(),
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        device=tensor.device,
    )
    made.operator = operator
    return made


def wrapper_like(size: Any, **options: Any) -> torch.Tensor | None:
    """A tensor with a wrapper's metadata alone; None for options of another kind."""
    if not options.keys() <= _KEYWORDS or options.get("layout") not in (None, torch.strided):
        return None
    made: torch.Tensor = make_wrapper(_Shape, size, **options)
    return made


class _Shape(torch.Tensor):
    """Only metadata."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} of metadata")


class _Questions(TorchDispatchMode):
    """Counts operators: of a wrapper whose class answers for its sizes, a question for one is an operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def is_wrapper_class(kind: type) -> bool:
    """Whether a class of tensors makes its instances, and implements operators, in Python."""
    return (
        issubclass(kind, torch.Tensor)
        and kind.__new__ is not torch.Tensor.__new__
        and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


def metadata_of_wrapper(tensor: torch.Tensor) -> tuple[Any, dict[str, Any]] | None:
    """Size and options of a wrapper; None if it has data, or its class answers for its metadata."""
    if isinstance(tensor, FakeTensor) or tensor.is_nested or torch._is_functional_tensor(tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass(), _Questions() as questions:
        if tensor.layout is not torch.strided or _has_data(tensor):
            return None
        options = {
            "strides": tensor.stride(),
            "storage_offset": tensor.storage_offset(),
            "dtype": tensor.dtype,
            "device": tensor.device,
            "requires_grad": tensor.requires_grad,
        }
        size = tensor.size()
    return None if questions.count else (size, options)


def _has_data(tensor: torch.Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # of what a wrapper has in the place of a storage
        return False
