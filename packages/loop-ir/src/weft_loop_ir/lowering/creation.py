"""Tensors made from nothing: constants, ranges and triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import to_expression
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, constant_tensor
from weft_loop_ir.lowering.registry import NoLowering, check_supported, overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


def _filled(context: LoweringContext, value: Any) -> TensorValue:
    dtype = context.meta_dtype()
    check_supported(dtype)
    if isinstance(value, (complex, TensorValue)):
        raise NoLowering("fill value")
    return constant_tensor(context, context.meta_size(), value, dtype, context.meta_device())


FULL = "full.default new_full.default full_like.default"
ZEROS = (
    "zeros.default zeros_like.default new_zeros.default empty.memory_format empty_like.default "
    "new_empty.default new_empty_strided.default empty_strided.default empty_permuted.default"
)
"""What ``empty`` holds is not defined; here it is zeros."""
ONES = "ones.default ones_like.default new_ones.default"


def _fill_rule(value: int) -> Callable[..., TensorValue]:
    def rule(context: LoweringContext, *args: Any, **kwargs: Any) -> TensorValue:
        return _filled(context, value)

    return rule


def _full_rule(context: LoweringContext, first: Any, *args: Any, **kwargs: Any) -> TensorValue:
    return _filled(context, kwargs["fill_value"] if "fill_value" in kwargs else args[-1])


for _names, _rule in ((FULL, _full_rule), (ZEROS, _fill_rule(0)), (ONES, _fill_rule(1))):
    for _name in _names.split():
        _operator = overload(_name)
        if _operator is not None:
            register_lowering(_operator, any_dtype=True)(_rule)


@register_lowering(aten.scalar_tensor.default)
def scalar_tensor(context: LoweringContext, value: Any, **options: Any) -> TensorValue:
    return _filled(context, value)


@register_lowering(aten.fill.Scalar, aten.fill.Tensor)
def fill(context: LoweringContext, tensor: TensorValue, value: Any) -> TensorValue:
    if not isinstance(value, TensorValue):
        return _filled(context, value)

    def function(ops: BodyRecorder, index: Index) -> Value:
        return ops.to_dtype(value.load(ops, ()), tensor.dtype)

    return context.result(function, [value])


@register_lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(context: LoweringContext, *args: Any, **options: Any) -> TensorValue:
    start, step = (0, 1) if len(args) < 2 else (args[0], args[2] if len(args) > 2 else 1)
    start, step = (int(v) if isinstance(v, bool) else v for v in (start, step))
    dtype = context.meta_dtype()
    exact = not any(isinstance(v, float) for v in (start, step))

    def function(ops: BodyRecorder, index: Index) -> Value:
        if exact:
            value = ops.index_expr(to_expression(start) + step * index[0], torch.int64)
            return ops.to_dtype(value, dtype)
        position = ops.to_dtype(ops.index_expr(index[0], torch.int64), torch.float64)
        value = ops.add(start, ops.mul(position, step))
        return ops.to_dtype(value, dtype)

    if not exact and not dtype.is_floating_point:
        raise NoLowering("integer range with a fractional step")
    return context.result(function)


@register_lowering(aten.eye.default, aten.eye.m)
def eye(context: LoweringContext, *args: Any, **options: Any) -> TensorValue:
    dtype = context.meta_dtype()

    def function(ops: BodyRecorder, index: Index) -> Value:
        row, column = (ops.index_expr(i, torch.int64) for i in index)
        return ops.to_dtype(ops.eq(row, column), dtype)

    return context.result(function)


@register_lowering(aten.tril.default, aten.triu.default)
def triangle(context: LoweringContext, tensor: TensorValue, diagonal: Any = 0) -> TensorValue:
    lower = context.operator == aten.tril.default
    compute = compute_dtype(tensor.dtype)

    def function(ops: BodyRecorder, index: Index) -> Value:
        position = ops.index_expr(index[-1] - index[-2], torch.int64)
        inside = ops.le(position, diagonal) if lower else ops.ge(position, diagonal)
        value = ops.to_dtype(tensor.load(ops, index), compute)
        return ops.to_dtype(ops.where(inside, value, 0), tensor.dtype)

    return context.result(function, [tensor], 4)
