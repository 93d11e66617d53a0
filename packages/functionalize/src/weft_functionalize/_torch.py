"""The private torch API that this package uses, in one place.  Checked on torch 2.13."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DATA_DEPENDENT_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "enter_autocast",
    "exit_autocast",
    "is_list_operator",
    "quiet_meta_failures",
    "run_by_element",
    "schema_arguments",
    "set_grad_enabled",
    "storage_identity",
]

# What FakeTensorMode raises where a result's value or shape depends on the data.
DATA_DEPENDENT_ERRORS: tuple[type[Exception], ...] = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
exit_autocast: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast
set_grad_enabled = torch._C._set_grad_enabled


@contextlib.contextmanager
def quiet_meta_failures() -> Iterator[None]:
    """Keep fake tensors from logging the errors of bad arguments, which are raised anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly if they share storage."""
    return int(tensor.untyped_storage()._cdata)


def schema_arguments(operator: OpOverload) -> list[Any]:
    """The arguments of an operator's schema, in order (``torch._C.Argument``)."""
    return list(operator._schema.arguments)


def is_list_operator(operator: OpOverload) -> bool:
    """Whether ``operator`` does one thing to each tensor of a list, and torch can do it one by one."""
    return operator._schema.name.startswith(
        "aten::_foreach_"
    ) and operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)


def run_by_element(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a list operator through the kernel that calls an operator for each tensor of the list."""
    return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
