"""Operators that do something else with a dimension of one element.

They leave it out (``nonzero().squeeze()``), or give a view where they copy several (``nonzero().flatten()``):
what is written to a view is seen in its base.

Shape rules take a size that depends on data for another number than one.  That is checked in each call, and a
call where it does not hold runs as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload, is_data_dependent, known_equal

_LEAVE_OUT = frozenset({"aten::squeeze", "aten::squeeze_", "aten::squeeze_copy"})


def check_sizes_of_one(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Rely on sizes that depend on data not being one where ``operator`` would do something else then."""
    if operator is torch.ops.aten.clone.default:
        if keywords.get("memory_format") is torch.contiguous_format:
            _check_copied(arguments[0])
        return
    if operator._schema.name not in _LEAVE_OUT:
        return
    tensor, dims = arguments[0], arguments[1:]
    given = dims[0] if dims else range(tensor.dim())
    for dim in [given] if isinstance(given, int) else given:
        if -tensor.dim() <= dim < tensor.dim() and _may_be_one(tensor.shape[dim]):
            torch._check(tensor.shape[dim] != 1)


def _may_be_one(size: Any) -> bool:
    """Whether data decides if a size is one."""
    return is_data_dependent(size) and not known_equal(size, 1)


def _check_copied(tensor: torch.Tensor) -> None:
    """``contiguous`` and ``reshape`` copy the tensor, but if the size that data decides is one."""
    sizes = [size for size in tensor.shape if is_data_dependent(size)]
    if len(sizes) == 1 and _may_be_one(sizes[0]) and _in_order_if_one(tensor, sizes[0]):
        torch._check(sizes[0] != 1)


def _in_order_if_one(tensor: torch.Tensor, one: Any) -> bool:
    elements = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if known_equal(size, one) or known_equal(size, 1):
            continue
        if not known_equal(stride, elements) and not known_equal(stride, elements * one):
            return False
        elements = elements * size
    return True
