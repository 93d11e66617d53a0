"""Upsampling by nearest neighbour and bilinear interpolation, and the gradient of whole factors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, scalar
from weft_loop_ir.lowering.pooling_windows import MAX_UNROLLED_WINDOW
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.registry import NoLowering, overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


def _scale(given: float | None, source: sympy.Expr, target: sympy.Expr) -> float:
    if given is not None and given > 0:
        return 1.0 / given
    if isinstance(source, sympy.Integer) and isinstance(target, sympy.Integer):
        return int(source) / int(target)
    raise NoLowering("upsampling of a symbolic size")


def _nearest(
    ops: BodyRecorder,
    position: sympy.Expr,
    source: sympy.Expr,
    target: sympy.Expr,
    given: float | None,
) -> sympy.Expr:
    """The source index of the nearest neighbour, as eager rounds it (float32)."""
    if source == target and given in (None, 1.0):
        return position
    ratio = target / source
    exact = isinstance(ratio, sympy.Integer) and given in (None, float(ratio))
    if exact and int(ratio) & (int(ratio) - 1) == 0:
        return ops.ranges.floor_div(position, ratio)
    scale = _scale(given, source, target)
    place = ops.to_dtype(ops.index_expr(position, torch.int64), torch.float32)
    scaled = ops.floor(ops.mul(place, ops.constant(scale, torch.float32)))
    index = ops.minimum(ops.to_dtype(scaled, torch.int64), scalar(ops, source - 1, torch.int64))
    return ops.indirect_symbol(index, source, False)


def _upsample_nearest(
    context: LoweringContext, tensor: TensorValue, scales: tuple[float | None, float | None]
) -> TensorValue:
    check_supported(tensor.dtype)
    size = context.meta_size()
    for k in (0, 1):
        if tensor.size[-2 + k] != size[-2 + k]:
            _scale(scales[k], tensor.size[-2 + k], size[-2 + k])

    def function(ops: BodyRecorder, index: Index) -> Value:
        where = tuple(
            _nearest(ops, index[-2 + k], tensor.size[-2 + k], size[-2 + k], scales[k])
            for k in (0, 1)
        )
        return tensor.load(ops, (*index[:-2], *where))

    return context.pointwise(size, tensor.dtype, tensor.device, function, [tensor], 6, True)


@register_lowering(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Any,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> TensorValue:
    return _upsample_nearest(context, tensor, (scales_h, scales_w))


@register_lowering(aten.upsample_nearest2d.vec)
def upsample_nearest2d_vec(
    context: LoweringContext, tensor: TensorValue, output_size: Any, scale_factors: Any = None
) -> TensorValue:
    return _upsample_nearest(context, tensor, _factors(scale_factors))


def _factors(scale_factors: Any) -> tuple[float | None, float | None]:
    if not scale_factors:
        return None, None
    if not all(isinstance(f, int | float) for f in scale_factors):
        raise NoLowering("symbolic scale factors")
    return float(scale_factors[0]), float(scale_factors[1])


@register_lowering(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> TensorValue:
    return _upsample_bilinear(context, tensor, align_corners, (scales_h, scales_w))


@register_lowering(aten.upsample_bilinear2d.vec)
def upsample_bilinear2d_vec(
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Any,
    align_corners: bool,
    scale_factors: Any = None,
) -> TensorValue:
    return _upsample_bilinear(context, tensor, align_corners, _factors(scale_factors))


def _upsample_bilinear(
    context: LoweringContext,
    tensor: TensorValue,
    align_corners: bool,
    scales: tuple[float | None, float | None],
) -> TensorValue:
    check_supported(tensor.dtype)
    if not tensor.dtype.is_floating_point:
        raise NoLowering("interpolation of integers")
    size = context.meta_size()
    compute = compute_dtype(tensor.dtype)
    factors = []
    for k in (0, 1):
        source, target = tensor.size[-2 + k], size[-2 + k]
        if align_corners:
            if not (isinstance(source, sympy.Integer) and isinstance(target, sympy.Integer)):
                raise NoLowering("upsampling of a symbolic size")
            factors.append((int(source) - 1) / (int(target) - 1) if target > 1 else 0.0)
        else:
            factors.append(_scale(scales[k], source, target))
    context.realize_computed(tensor)

    def along(ops: BodyRecorder, position: sympy.Expr, k: int) -> tuple[Any, Any, Value]:
        """Both neighbours' indices along dim ``k`` and the weight of the second."""
        place = ops.to_dtype(ops.index_expr(position, torch.int64), compute)
        factor = ops.constant(factors[k], compute)
        if align_corners:
            real = ops.mul(place, factor)
        else:
            half = ops.constant(0.5, compute)
            real = ops.sub(ops.mul(ops.add(place, half), factor), half)
            real = ops.maximum(real, ops.constant(0.0, compute))
        last = scalar(ops, tensor.size[-2 + k] - 1, torch.int64)
        near = ops.minimum(ops.to_dtype(ops.floor(real), torch.int64), last)
        far = ops.minimum(ops.add(near, scalar(ops, 1, torch.int64)), last)
        weight = ops.sub(real, ops.to_dtype(near, compute))
        weight = ops.minimum(
            ops.maximum(weight, ops.constant(0.0, compute)), ops.constant(1.0, compute)
        )
        extent = tensor.size[-2 + k]
        return (
            ops.indirect_symbol(near, extent, False),
            ops.indirect_symbol(far, extent, False),
            weight,
        )

    def function(ops: BodyRecorder, index: Index) -> Value:
        top, bottom, down = along(ops, index[-2], 0)
        left, right, across = along(ops, index[-1], 1)
        one = ops.constant(1.0, compute)

        def row(h: Any) -> Value:
            values = [
                ops.to_dtype(tensor.load(ops, (*index[:-2], h, w)), compute) for w in (left, right)
            ]
            return ops.add(ops.mul(ops.sub(one, across), values[0]), ops.mul(across, values[1]))

        result = ops.add(ops.mul(ops.sub(one, down), row(top)), ops.mul(down, row(bottom)))
        return ops.to_dtype(result, tensor.dtype)

    return context.pointwise(size, tensor.dtype, tensor.device, function, [tensor], 40, True)


# -- gradients ---------------------------------------------------------------------------------------------


def _upsample_nearest_backward(
    context: LoweringContext,
    grad: TensorValue,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    *scales: float | None,
) -> TensorValue:
    """The sum over the block of results that each element was copied to; sizes have whole ratios."""
    check_supported(grad.dtype)
    rank = len(output_size)
    size = context.meta_size()
    factors: list[int] = []
    for source, target, scale in zip(size[-rank:], grad.size[-rank:], scales, strict=True):
        ratio = target / source if source != 0 else sympy.S.NaN
        if not isinstance(ratio, sympy.Integer) or scale not in (None, float(ratio)):
            raise NoLowering("upsampling by a fraction")
        factors.append(int(ratio))
    count = int(sympy.prod(factors))
    if count > MAX_UNROLLED_WINDOW:
        raise NoLowering("a large factor")
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        for place in itertools.product(*map(range, factors)):
            block = (i * f + p for i, f, p in zip(index[-rank:], factors, place, strict=True))
            value = ops.to_dtype(grad.load(ops, (*index[:-rank], *block)), compute)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return ops.to_dtype(total, grad.dtype)

    return context.pointwise(size, grad.dtype, grad.device, function, [grad], 2 * count)


for _kind, _rank in itertools.product(("upsample_nearest", "_upsample_nearest_exact"), (1, 2, 3)):
    _operator = overload(f"{_kind}{_rank}d_backward")
    if _operator is not None:
        register_lowering(_operator)(_upsample_nearest_backward)
