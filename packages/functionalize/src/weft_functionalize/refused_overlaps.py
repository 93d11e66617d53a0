"""Writes that eager refuses since an operand overlaps what is written: ``x[1:].add_(x[:-1])``, ``x -= x[0]``.

The value of the one before and after the write would differ by order.  Fakes let it pass, and the functional
form has a value for it, so that the error would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload, known_equal, known_true, storage_identity
from .tensor_ssa.functional_counterparts import written_arguments
from .unsupported import Unsupported

_LOOK_AT_OVERLAPS = frozenset(
    f"aten::{name}"
    for name in (
        *("copy_", "scatter_", "scatter_add_", "scatter_reduce_", "index_put_", "_index_put_impl_"),
        *("index_add_", "index_copy_", "index_reduce_"),
    )
)
"""Besides the pointwise operators; tried on torch 2.11 and 2.13.  Products and fills do not."""


def check_overlaps(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager raises an error for where fake operands lie.

    The graph then runs as it was captured, so that the error is eager's own.
    """
    if torch.Tag.pointwise not in operator.tags and operator._schema.name not in _LOOK_AT_OVERLAPS:
        return
    written = written_arguments(operator)
    if not written or operator._schema.name.removesuffix("_") == "aten::masked_fill":
        return
    names = [argument.name for argument in operator._schema.arguments]
    operands = dict(zip(names, arguments, strict=False)) | dict(keywords)
    for target in (operands.get(name) for name in written):
        for operand in operands.values():
            if _overlap_in_part(target, operand):
                raise Unsupported(
                    "operand that overlaps what is written",
                    str(operator),
                    "clone() the operand before the write",
                )


def _overlap_in_part(target: Any, operand: Any) -> bool:
    """Whether two dense tensors share some elements, and are not the same ones in the same order."""
    if not isinstance(target, torch.Tensor) or not isinstance(operand, torch.Tensor):
        return False
    if target is operand or storage_identity(target) != storage_identity(operand):
        return False
    if not all(map(torch.ops.aten.is_non_overlapping_and_dense.default, (target, operand))):
        return False
    begin, end = _extent(target)
    other_begin, other_end = _extent(operand)
    if known_equal(begin, end) or known_equal(other_begin, other_end):
        return False
    if known_equal(begin, other_begin) and known_equal(end, other_end):
        return target.dim() != operand.dim() or not all(
            map(known_equal, target.stride(), operand.stride())
        )
    return known_true(begin < other_end) and known_true(other_begin < end)


def _extent(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The bytes of the storage at which a dense tensor begins and before which it ends."""
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + tensor.numel() * tensor.element_size()
