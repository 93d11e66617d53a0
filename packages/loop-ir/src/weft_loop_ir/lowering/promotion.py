"""Operands: type promotion, as torch's ``result_type`` and TensorIterator do it, and broadcasting.

Source: "Type promotion" in the notes of torch's documentation (tensor_attributes): operands rank as
tensors with dimensions, tensors without, numbers; a lower rank changes the dtype only by a higher category.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, rounded_scalar
from weft_loop_ir.lowering.registry import NoLowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.ops import STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder
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


# -- broadcasting --------------------------------------------------------------------------------------


def broadcast_size(sizes: Sequence[tuple[sympy.Expr, ...]]) -> tuple[sympy.Expr, ...]:
    """The common size.  A symbolic extent counts as not 1 (torch's ShapeEnv specialises 0 and 1)."""
    if sizes and all(size == sizes[0] for size in sizes):  # most often
        return sizes[0]
    rank = max((len(s) for s in sizes), default=0)
    result: list[sympy.Expr] = []
    for k in range(rank):
        extent: sympy.Expr = sympy.S.One
        for size in sizes:
            position = k - (rank - len(size))
            if position < 0 or size[position] == 1:
                continue
            if extent == 1 or isinstance(size[position], sympy.Integer):
                extent = size[position]
        result.append(extent)
    return tuple(result)


def broadcast_index(
    index: Index, size: tuple[sympy.Expr, ...], target: tuple[sympy.Expr, ...]
) -> Index:
    """The index into a tensor of ``size`` that ``index`` into the broadcast ``target`` reads."""
    if size == target:
        return index
    skip = len(target) - len(size)
    return tuple(
        sympy.S.Zero if n == 1 and m != 1 else i
        for i, n, m in zip(index[skip:], size, target[skip:], strict=True)
    )


def read(
    ops: BodyRecorder,
    operand: Operand,
    index: Index,
    target: tuple[sympy.Expr, ...],
    dtype: torch.dtype,
    rounded: torch.dtype | None = None,
) -> Value:
    """The operand's element at ``index`` of the broadcast ``target``, converted to ``dtype``.

    It is rounded to ``rounded`` first, a type of half precision or ``dtype``.
    """
    if not isinstance(operand, TensorValue):
        return rounded_scalar(ops, operand, dtype if rounded is None else rounded)
    value = operand.load(ops, broadcast_index(index, operand.size, target))
    if rounded in STORAGE_ONLY and ops.dtype_of(value) is not torch.bool:
        value = ops.to_dtype(value, rounded)
    return ops.to_dtype(value, dtype)


def broadcast_map(
    context: LoweringContext,
    tensors: Sequence[TensorValue],
    compute: torch.dtype | None,
    target: torch.dtype,
    formula: Callable[..., Value],
    *,
    instructions: int = 1,
    costly: bool = False,
) -> TensorValue:
    """``formula(ops, *values)`` over broadcast tensors, read in ``compute`` if it is given, in ``target``."""
    size = broadcast_size([t.size for t in tensors])

    def function(ops: BodyRecorder, index: Index) -> Value:
        values = [read(ops, t, index, size, compute or t.dtype) for t in tensors]
        return ops.to_dtype(formula(ops, *values), target)

    return context.pointwise(
        size, target, tensors[0].device, function, tensors, instructions, costly
    )


def map_values(
    context: LoweringContext,
    tensors: Sequence[TensorValue],
    dtype: torch.dtype,
    formula: Callable[..., Value],
    *,
    costly: bool = False,
    instructions: int = 1,
) -> TensorValue:
    """``formula(ops, *values)`` over tensors of one size, converted to ``dtype`` at the end."""
    return broadcast_map(
        context, tensors, None, dtype, formula, costly=costly, instructions=instructions
    )


def tensors_of(operands: Sequence[object]) -> list[TensorValue]:
    """The tensors among ``operands``."""
    return [o for o in operands if isinstance(o, TensorValue)]
