"""The private torch API that this package uses, in one place.  Checked on torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "COMMUNICATES",
    "DATA_DEPENDENT_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "core_aten_decompositions",
    "packed_saved_tensors",
    "schema_arguments",
    "set_grad_enabled",
    "storage_identity",
]

# What FakeTensorMode raises where a result's value or shape depends on the data.
DATA_DEPENDENT_ERRORS: tuple[type[Exception], ...] = (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

COMMUNICATES = "_c10d_functional"
"""The namespace of collectives."""

set_grad_enabled = torch._C._set_grad_enabled


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly if they share storage."""
    return int(tensor.untyped_storage()._cdata)


def packed_saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """What a context of ``torch.autograd.Function`` has saved, to be unpacked one by one.

    ``unpack()`` checks for writes but can't give the function's own outputs, ``data`` can.
    """
    packed: tuple[Any, ...] = ctx._raw_saved_tensors
    return packed


def schema_arguments(operator: OpOverload) -> list[Any]:
    """The arguments of an operator's schema, in order (``torch._C.Argument``)."""
    return list(operator._schema.arguments)
