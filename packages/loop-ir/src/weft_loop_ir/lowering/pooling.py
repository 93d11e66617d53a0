"""Pooling and upsampling: windows of static extent, unrolled, or reductions where windows tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, scalar
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.reductions import map_values, over_dims
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import reshape
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
MAX_UNROLLED_WINDOW = 49
"""Elements of a window that are unrolled in one body; a larger window is extern."""


def _pair(value: Any, default: Any = None) -> tuple[int, int]:
    if not value and default is not None:
        return _pair(default)
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


class _Windows:
    """The windows of a two-dimensional pooling over the last two dims."""

    def __init__(
        self, tensor: TensorValue, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
    ) -> None:
        check_supported(tensor.dtype)
        self.kernel = _pair(kernel)
        self.stride = _pair(stride, self.kernel)
        self.padding = _pair(padding)
        self.dilation = _pair(dilation)
        self.extent = tensor.size[-2:]
        if self.kernel[0] * self.kernel[1] > MAX_UNROLLED_WINDOW:
            raise NoLowering("a large window")

    def positions(self, index: Index) -> list[tuple[sympy.Expr, sympy.Expr]]:
        """The input positions of the window for an output index, row by row."""
        start = self.start(index)
        return [
            (start[0] + i * self.dilation[0], start[1] + j * self.dilation[1])
            for i, j in itertools.product(range(self.kernel[0]), range(self.kernel[1]))
        ]

    def start(self, index: Index) -> tuple[sympy.Expr, sympy.Expr]:
        return (
            index[-2] * self.stride[0] - self.padding[0],
            index[-1] * self.stride[1] - self.padding[1],
        )


def _window_value(
    ops: BodyRecorder,
    tensor: TensorValue,
    index: Index,
    windows: _Windows,
    position: tuple[sympy.Expr, sympy.Expr],
    compute: torch.dtype,
    other: bool | int | float,
) -> tuple[Value, Value | None]:
    """The element at a window's position, ``other`` outside the input; and the mask that says so."""
    mask = bounds_mask(ops, list(zip(position, windows.extent, strict=True)))
    where = (*index[:-2], *position)

    def body(nested: Any) -> Value:
        return nested.to_dtype(tensor.load(nested, where), compute)  # type: ignore[no-any-return]

    return (body(ops) if mask is None else ops.masked(mask, body, other)), mask


@register_lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    context: LoweringContext,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, TensorValue]:
    windows = _Windows(tensor, kernel_size, stride, padding, dilation)
    if any(d > 1 and p > 0 for d, p in zip(windows.dilation, windows.padding, strict=True)):
        raise NoLowering("dilation with padding")
    dtype = tensor.dtype
    if dtype == torch.bool:
        raise NoLowering("max pooling of bool")
    compute = compute_dtype(dtype)
    lowest = float("-inf") if compute.is_floating_point else torch.iinfo(compute).min
    context.realize_computed(tensor)

    def value(ops: BodyRecorder, index: Index) -> Value:
        result: Value | None = None
        for position in windows.positions(index):
            element, _ = _window_value(ops, tensor, index, windows, position, compute, lowest)
            result = element if result is None else ops.maximum(result, element)
        assert result is not None
        return ops.to_dtype(result, dtype)

    def position_of(ops: BodyRecorder, index: Index) -> Value:
        start = windows.start(index)
        first = [sympy.Max(s, 0) if ops.ranges.bounds(s)[0] != 0 else s for s in start]
        best: Value | None = None
        place = ops.index_expr(first[0] * windows.extent[1] + first[1], torch.int64)
        for position in windows.positions(index):
            element, mask = _window_value(ops, tensor, index, windows, position, compute, lowest)
            if best is None:
                best = element
                continue
            better = ops.gt(element, best)
            if compute.is_floating_point:
                better = ops.logical_or(better, ops.isnan(element))
            if mask is not None:
                better = ops.logical_and(better, mask)
            here = ops.index_expr(position[0] * windows.extent[1] + position[1], torch.int64)
            place = ops.where(better, here, place)
            best = ops.where(better, element, best)
        return place

    count = windows.kernel[0] * windows.kernel[1]
    size = context.meta_size(0)
    device = tensor.device
    return (
        context.pointwise(size, dtype, device, value, [tensor], 3 * count, True),
        context.pointwise(size, torch.int64, device, position_of, [tensor], 6 * count, True),
    )


@register_lowering(aten.avg_pool2d.default)
def avg_pool2d(
    context: LoweringContext,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    windows = _Windows(tensor, kernel_size, stride, padding)
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    compute = compute_dtype(tensor.dtype)
    context.realize_computed(tensor)
    plain = not ceil_mode and (windows.padding == (0, 0) or count_include_pad)

    def divisor(ops: BodyRecorder, index: Index) -> Value:
        if divisor_override is not None:
            return scalar(ops, divisor_override, compute)
        if plain:
            return scalar(ops, windows.kernel[0] * windows.kernel[1], compute)
        count: sympy.Expr = sympy.S.One
        for start, kernel, pad, extent in zip(
            windows.start(index), windows.kernel, windows.padding, windows.extent, strict=True
        ):
            end = sympy.Min(start + kernel, extent + pad)
            if not count_include_pad:
                start, end = sympy.Max(start, 0), sympy.Min(end, extent)
            count = count * (end - start)
        return ops.to_dtype(ops.index_expr(count, torch.int64), compute)

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        for position in windows.positions(index):
            element, _ = _window_value(ops, tensor, index, windows, position, compute, 0.0)
            total = element if total is None else ops.add(total, element)
        return ops.to_dtype(ops.truediv(total, divisor(ops, index)), tensor.dtype)

    count = windows.kernel[0] * windows.kernel[1]
    return context.pointwise(
        context.meta_size(), tensor.dtype, tensor.device, function, [tensor], 3 * count, True
    )


@register_lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(
    context: LoweringContext, tensor: TensorValue, output_size: Sequence[Any]
) -> TensorValue:
    """Windows that tile the input: a reduction over the two dims within windows."""
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    check_supported(tensor.dtype)
    height, width = tensor.size[-2:]
    rows, columns = context.meta_size()[-2:]
    sizes = (height, width, rows, columns)
    if not all(isinstance(s, sympy.Integer) for s in sizes) or 0 in sizes:
        if (rows, columns) != (1, 1) or 0 in sizes:
            raise NoLowering("adaptive pooling of a symbolic size")
    elif int(height) % int(rows) or int(width) % int(columns):
        raise NoLowering("adaptive pooling with overlapping windows")
    compute = compute_dtype(tensor.dtype)
    high, wide = height / rows, width / columns
    context.realize_computed(tensor)
    split = reshape(context, tensor, (*tensor.size[:-2], rows, high, columns, wide))
    rank = len(split.size)
    (total,) = over_dims(context, split, ["sum"], [rank - 3, rank - 1], False, compute)
    return map_values(
        context,
        [total],
        tensor.dtype,
        lambda ops, v: ops.truediv(v, scalar(ops, high * wide, compute)),
    )


# -- upsampling --------------------------------------------------------------------------------------------


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
