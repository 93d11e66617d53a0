"""Softmax and the normalisations: reductions with a broadcast of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv, integer
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, constant_tensor
from weft_loop_ir.lowering.promotion import broadcast_map, map_values, require_float
from weft_loop_ir.lowering.reductions import (
    cast,
    count_of,
    exponentials,
    is_empty,
    moments,
    over_dims,
    sum_of_exponentials,
    variance_of,
)
from weft_loop_ir.lowering.registry import NoLowering, overload, register_lowering
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.lowering.views import (
    normalize_dim,
    remove_dims,
    reshape,
    reshape_index,
    view_stride,
)
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


def _softmax_dims(tensor: TensorValue, dim: int) -> list[int]:
    """The dim of a softmax, none for a scalar; eager itself rejects what fake tensors accept."""
    require_float(tensor)
    rank = len(tensor.size)
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise NoLowering(f"dim {dim} of {rank}")
    if is_empty(tensor.size):
        raise NoLowering("softmax of no elements")
    return [normalize_dim(dim, rank)] if rank else []


@register_lowering(aten._softmax.default, aten._safe_softmax.default)
def softmax(
    context: LoweringContext, tensor: TensorValue, dim: int, half_to_float: Any = False
) -> TensorValue:
    safe = context.operator == aten._safe_softmax.default
    target = context.meta_dtype()
    dims = _softmax_dims(tensor, dim)
    compute = compute_dtype(target)
    context.realize_computed(tensor)
    (largest,) = over_dims(context, tensor, ["max"], dims, True, compute)
    terms = exponentials(context, tensor, largest, compute)
    context.realize(terms)
    (total,) = over_dims(context, terms, ["sum"], dims, True, compute)
    if not safe:
        return broadcast_map(
            context, [terms, total], compute, target, lambda ops, e, s: ops.truediv(e, s)
        )

    def guarded(ops: BodyRecorder, e: Value, s: Value, m: Value) -> Value:
        empty = ops.eq(m, float("-inf"))
        return ops.where(empty, 0.0, ops.truediv(e, s))

    return broadcast_map(context, [terms, total, largest], compute, target, guarded)


@register_lowering(aten._log_softmax.default)
def log_softmax(
    context: LoweringContext, tensor: TensorValue, dim: int, half_to_float: bool
) -> TensorValue:
    target = context.meta_dtype()
    dims = _softmax_dims(tensor, dim)
    compute = compute_dtype(target)
    context.realize_computed(tensor)
    (largest,) = over_dims(context, tensor, ["max"], dims, True, compute)
    total = sum_of_exponentials(context, tensor, largest, dims, True, compute)
    logarithm = map_values(context, [total], compute, lambda ops, s: ops.log(s), costly=True)
    context.realize(logarithm)
    return broadcast_map(
        context,
        [tensor, largest, logarithm],
        compute,
        target,
        lambda ops, x, m, s: ops.sub(ops.sub(x, m), s),
        instructions=2,
    )


def _statistics(
    context: LoweringContext, tensor: TensorValue, dims: Sequence[int], epsilon: float
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """The mean and ``1 / sqrt(variance + epsilon)`` over ``dims``, which are kept as 1, in the compute dtype.

    The third is the sum of squared deviations, as :func:`moments` gives it.
    """
    mean, m2 = moments(context, tensor, dims, True)
    compute = compute_dtype(tensor.dtype)
    rstd = _rsqrt_of_mean(context, m2, count_of(tensor, dims), epsilon, compute)
    return context.realize(cast(context, mean, compute)), rstd, m2


def _rsqrt_of_mean(
    context: LoweringContext,
    total: TensorValue,
    count: sympy.Expr,
    epsilon: float,
    target: torch.dtype,
) -> TensorValue:
    """``1 / sqrt(total / count + epsilon)``, computed in the dtype of ``total``."""

    def formula(ops: BodyRecorder, value: Value) -> Value:
        average = ops.truediv(value, count)
        return ops.rsqrt(ops.add(average, float(epsilon)))

    rstd = map_values(context, [total], target, formula, costly=True, instructions=3)
    return context.realize(rstd)


@register_lowering(aten.native_layer_norm.default)
def layer_norm(
    context: LoweringContext,
    tensor: TensorValue,
    normalized_shape: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    if is_empty(tensor.size):
        raise NoLowering("layer norm of no elements")
    rank = len(tensor.size)
    dims = list(range(rank - len(normalized_shape), rank))
    mean, rstd, _ = _statistics(context, tensor, dims, eps)
    result = _normalized(context, [tensor, mean, rstd], weight, bias)
    return result, *_kept_statistics(context, mean, rstd, ())


def _kept_statistics(
    context: LoweringContext, mean: TensorValue, rstd: TensorValue, dims: Sequence[int]
) -> tuple[TensorValue, TensorValue]:
    """The second and third result: both without ``dims``, in the dtypes that are asked for."""
    flat = [remove_dims(t, dims) if dims else t for t in (mean, rstd)]
    mean, rstd = (cast(context, t, context.meta_dtype(k)) for k, t in enumerate(flat, 1))
    return mean, rstd


def _normalized(
    context: LoweringContext,
    statistics: Sequence[TensorValue],
    weight: TensorValue | None,
    bias: TensorValue | None,
) -> TensorValue:
    """``(x - mean) * rstd * weight + bias`` of ``statistics = (x, mean, rstd)``."""
    operands = list(statistics) + [t for t in (weight, bias) if t is not None]
    target = statistics[0].dtype

    def formula(ops: BodyRecorder, x: Value, mean: Value, rstd: Value, *rest: Value) -> Value:
        value = ops.mul(ops.sub(x, mean), rstd)
        if weight is not None:
            value = ops.mul(value, rest[0])
        if bias is not None:
            value = ops.add(value, rest[-1])
        return value

    return broadcast_map(context, operands, compute_dtype(target), target, formula, instructions=4)


@register_lowering(aten.native_group_norm.default)
def group_norm(
    context: LoweringContext,
    tensor: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    if is_empty(tensor.size):
        raise NoLowering("group norm of no elements")
    batch, channels = tensor.size[0], tensor.size[1]
    groups = sympy.Integer(group)
    grouped_size = (batch, groups, FloorDiv(channels, integer(group)), *tensor.size[2:])
    context.realize_computed(tensor)
    grouped = reshape(tensor, grouped_size)
    dims = list(range(2, len(grouped_size)))
    mean, rstd, _ = _statistics(context, grouped, dims, eps)
    affine = [_per_channel(t, grouped_size) for t in (weight, bias)]
    result = reshape(_normalized(context, [grouped, mean, rstd], *affine), tensor.size)
    return result, *_kept_statistics(context, mean, rstd, dims)


def _per_channel(tensor: TensorValue | None, grouped: tuple[sympy.Expr, ...]) -> TensorValue | None:
    """A vector over channels as ``[groups, channels in a group, 1, ...]``."""
    if tensor is None:
        return None
    size = (grouped[1], grouped[2]) + (sympy.S.One,) * (len(grouped) - 3)
    assert tensor.stride is not None
    stride = view_stride(tensor.size, tensor.stride, size)
    return tensor.view(size, stride, tensor.offset, reshape_index(tensor.size, size))


def batch_norm_inference(
    context: LoweringContext,
    tensor: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    target = context.meta_dtype(0)
    compute = compute_dtype(target)

    def formula(ops: BodyRecorder, x: Value, mean: Value, var: Value, *rest: Value) -> Value:
        rstd = ops.rsqrt(ops.add(var, float(eps)))
        if weight is not None:
            rstd = ops.mul(rstd, rest[0])
        value = ops.mul(ops.sub(x, mean), rstd)
        return value if bias is None else ops.add(value, rest[-1])

    rank = len(tensor.size)
    columns = [_column(t, rank) for t in (running_mean, running_var, weight, bias) if t is not None]
    result = broadcast_map(
        context, [tensor, *columns], compute, target, formula, instructions=6, costly=True
    )
    empties = (
        constant_tensor(context, context.meta_size(k), 0, context.meta_dtype(k), tensor.device)
        for k in range(1, len(context.meta))
    )
    return (result, *empties)


register_lowering(aten._native_batch_norm_legit_no_training.default)(batch_norm_inference)


@register_lowering(aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default)
def native_batch_norm(
    context: LoweringContext,
    tensor: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """By the batch's or running statistics; the functional form gives these too, moved by ``momentum``."""
    moves = context.operator == aten._native_batch_norm_legit_functional.default
    if moves and not training:
        raise NoLowering("batch norm that keeps its statistics")
    if running_mean is None or running_var is None:
        return batch_norm_of_batch(context, tensor, weight, bias, eps)
    if not training:
        return batch_norm_inference(
            context, tensor, weight, bias, running_mean, running_var, momentum, eps
        )
    if not moves:
        raise NoLowering("batch norm that updates its statistics")
    dims = _all_but_channels(tensor)
    mean, rstd, m2 = _statistics(context, tensor, dims, eps)
    results = _by_batch(context, tensor, weight, bias, mean, rstd, dims)
    variance = variance_of(context, m2, count_of(tensor, dims), 1, m2.dtype)

    def moved(ops: BodyRecorder, new: Value, old: Value) -> Value:
        return ops.add(ops.mul(float(momentum), new), ops.mul(1.0 - float(momentum), old))

    updated = (
        broadcast_map(context, [remove_dims(new, dims), old], new.dtype, old.dtype, moved)
        for new, old in ((mean, running_mean), (variance, running_var))
    )
    return (*results, *updated)


@register_lowering(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_statistics(
    context: LoweringContext, tensor: TensorValue, weight: Any, bias: Any, *options: Any
) -> tuple[TensorValue, ...]:
    return batch_norm_of_batch(context, tensor, weight, bias, eps=options[-1])


def batch_norm_of_batch(
    context: LoweringContext,
    tensor: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """``(result, mean, 1 / sqrt(variance + eps))`` by the statistics of the batch, which dim 1 keeps."""
    dims = _all_but_channels(tensor)
    mean, rstd, _ = _statistics(context, tensor, dims, eps)
    return _by_batch(context, tensor, weight, bias, mean, rstd, dims)


def _all_but_channels(tensor: TensorValue) -> list[int]:
    """The dims that a batch's statistics are over: all but dim 1."""
    if is_empty(tensor.size) or len(tensor.size) < 2:
        raise NoLowering("batch norm of no elements")
    return [d for d in range(len(tensor.size)) if d != 1]


def _by_batch(
    context: LoweringContext,
    tensor: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    rstd: TensorValue,
    dims: list[int],
) -> tuple[TensorValue, TensorValue, TensorValue]:
    scale, shift = (None if t is None else _column(t, len(tensor.size)) for t in (weight, bias))
    result = _normalized(context, [tensor, mean, rstd], scale, shift)
    return result, *_kept_statistics(context, mean, rstd, dims)


def _column(vector: TensorValue, rank: int) -> TensorValue:
    """A vector over channels as ``[channels, 1, ...]``, to broadcast against a tensor of ``rank`` dims."""
    size = (vector.size[0],) + (sympy.S.One,) * (rank - 2)
    stride = (
        None if vector.stride is None else (vector.stride[0],) + (sympy.S.One,) * (len(size) - 1)
    )
    return vector.view(size, stride, vector.offset, reshape_index(vector.size, size))


def rms_norm(
    context: LoweringContext,
    tensor: TensorValue,
    normalized_shape: Sequence[Any],
    weight: TensorValue | None,
    eps: float | None,
) -> tuple[TensorValue, TensorValue]:
    if is_empty(tensor.size):
        raise NoLowering("RMS norm of no elements")
    compute = compute_dtype(tensor.dtype)
    epsilon = torch.finfo(compute).eps if eps is None else eps
    rank = len(tensor.size)
    dims = list(range(rank - len(normalized_shape), rank))
    context.realize_computed(tensor)
    (total,) = over_dims(
        context, tensor, ["sum"], dims, True, compute, lambda ops, v: ops.mul(v, v)
    )
    rstd = _rsqrt_of_mean(context, total, count_of(tensor, dims), epsilon, compute)
    operands = [tensor, rstd] + ([] if weight is None else [weight])

    def formula(ops: BodyRecorder, x: Value, r: Value, *rest: Value) -> Value:
        value = ops.mul(x, r)
        return ops.mul(value, rest[0]) if rest else value

    result = broadcast_map(
        context, operands, compute, context.meta_dtype(0), formula, instructions=2
    )
    return result, cast(context, rstd, context.meta_dtype(1))


_fused_rms_norm = overload("_fused_rms_norm")
if _fused_rms_norm is not None:
    register_lowering(_fused_rms_norm)(rms_norm)
