"""Writes that eager refuses since an operand overlaps what is written: ``x[1:].add_(x[:-1])``, ``x -= x[0]``.

The value of the one before and after the write would differ by order.  Fakes let it pass, and the functional
form has a value for it, so that the error would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload, schema_arguments, storage_identity
from .tensor_ssa.functional_counterparts import functional_counterpart, written_arguments
from .unsupported import Unsupported

_SCATTERS = frozenset(
    f"aten::{name}"
    for name in (
        *("copy_", "scatter_", "scatter_add_", "scatter_reduce_", "index_put_", "_index_put_impl_"),
        *("index_add_", "index_copy_", "index_reduce_"),
    )
)
"""Refused as the pointwise operators are; products and fills are not.  Tried on torch 2.13."""

_NEVER_REFUSED = frozenset({"aten::masked_fill_", "aten::fill_"})
"""Pointwise operators that take overlapping operands."""


def check_overlaps(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager raises an error for where fake operands lie.

    The graph then runs as it was captured, so that the error is eager's own.
    """
    written = written_arguments(operator)
    if not written or operator._schema.name in _NEVER_REFUSED:
        return
    counterpart = functional_counterpart(operator) or operator
    if torch.Tag.pointwise not in counterpart.tags and operator._schema.name not in _SCATTERS:
        return
    names = [argument.name for argument in schema_arguments(operator)]
    operands = dict(zip(names, arguments, strict=False)) | dict(keywords)
    if any(index is not None and index.dim() == 0 for index in operands.get("indices", ())):
        return  # what ``x[number] = row`` stands for, which eager does by select and copy
    for target in (operands.get(name) for name in written):
        for operand in operands.values():
            if _overlap_in_part(target, operand):
                raise Unsupported(
                    "operand that overlaps what is written",
                    str(operator),
                    "clone() the operand before the write",
                )


def _overlap_in_part(target: Any, operand: Any) -> bool:
    """Whether two dense tensors share some elements, and are not the same ones in the same order.

    Where sizes or places are symbols it is not asked: they would be fixed by that.
    """
    if not isinstance(target, torch.Tensor) or not isinstance(operand, torch.Tensor):
        return False
    if target is operand or storage_identity(target) != storage_identity(operand):
        return False
    if not all(map(_is_known_and_dense, (target, operand))):
        return False
    begin, end = _extent(target)
    other_begin, other_end = _extent(operand)
    if max(begin, other_begin) >= min(end, other_end):
        return False
    return (begin, end, target.stride()) != (other_begin, other_end, operand.stride())


def _is_known_and_dense(tensor: torch.Tensor) -> bool:
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not all(type(number) is int for number in numbers):
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage at which a dense tensor begins and before which it ends."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + tensor.numel() * tensor.element_size()
