"""Broadcasting of operands, and reading them with conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import LoweringContext, rounded_scalar
from weft_loop_ir.lowering.promotion import Operand
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.ops import STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder


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
