"""Type promotion, as torch's ``result_type`` and TensorIterator do it.

Source: "Type promotion" in the notes of torch's documentation (tensor_attributes): operands rank as
tensors with dimensions, tensors without, numbers; a lower rank changes the dtype only by a higher category.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import TypeAlias

import sympy
import torch

from weft_loop_ir.lowering.context import compute_dtype
from weft_loop_ir.lowering.registry import NoLowering
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.size_float import SizeFloat

Operand: TypeAlias = TensorValue | bool | int | float | sympy.Expr | SizeFloat


class Promotion(enum.Enum):
    """How an operator's result dtype follows from its operands'."""

    DEFAULT = "default"
    INT_TO_FLOAT = "integers become the default float dtype"
    TO_BOOL = "computes in the promoted dtype, gives bool"


def result_type(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype that ``torch.result_type`` gives for these operands."""
    with_dimensions: torch.dtype | None = None
    without: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorValue):
            if operand.size:
                with_dimensions = _join(with_dimensions, operand.dtype)
            else:
                without = _join(without, operand.dtype)
        else:
            numbers = _join(numbers, number_dtype(operand))
    result = _override(with_dimensions, _override(without, numbers))
    if result is None:
        raise ValueError("result_type of no operands")
    return result


def number_dtype(number: bool | int | float | complex | sympy.Expr | SizeFloat) -> torch.dtype:
    """The dtype that a Python number stands for in promotion."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int | sympy.Expr):
        return torch.int64
    if isinstance(number, float | SizeFloat):
        return torch.get_default_dtype()
    raise NoLowering("a complex or symbolic number")


@functools.cache  # under a fake mode torch asks its dispatcher
def _join(left: torch.dtype | None, right: torch.dtype) -> torch.dtype:
    return right if left is None else torch.promote_types(left, right)


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def _override(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """The higher rank's dtype unless the lower rank's is of a higher category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    return lower if _category(lower) > _category(higher) else higher


def promote(operands: Sequence[Operand], kind: Promotion) -> tuple[torch.dtype, torch.dtype]:
    """``(dtype to compute in, dtype of the result)`` of an elementwise operator."""
    common = result_type(operands)
    if kind is Promotion.INT_TO_FLOAT and not (common.is_floating_point or common.is_complex):
        common = torch.get_default_dtype()
    result = torch.bool if kind is Promotion.TO_BOOL else common
    return compute_dtype(common), result


def require_float(tensor: TensorValue) -> None:
    """Raise :class:`NoLowering` for an integer tensor."""
    if not tensor.dtype.is_floating_point:
        raise NoLowering(f"dtype {tensor.dtype}")
