"""Pooling by windows of a given size, unrolled in the body."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, scalar
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
MAX_UNROLLED_WINDOW = 49
"""Elements of a window that are unrolled in one body; a larger window is extern."""


def _pair(value: Any, default: Any = None) -> tuple[int, int]:
    if not value and default is not None:
        return _pair(default)
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


class Windows:
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

    def divisor(
        self, compute: torch.dtype, ceil_mode: bool, count_include_pad: bool, override: int | None
    ) -> Callable[[BodyRecorder, Index], Value]:
        """What an average divides by, as a function of the window's index."""
        plain = not ceil_mode and (self.padding == (0, 0) or count_include_pad)

        def function(ops: BodyRecorder, index: Index) -> Value:
            if override is not None:
                return scalar(ops, override, compute)
            if plain:
                return scalar(ops, self.kernel[0] * self.kernel[1], compute)
            count: sympy.Expr = sympy.S.One
            for start, kernel, pad, extent in zip(
                self.start(index), self.kernel, self.padding, self.extent, strict=True
            ):
                end = sympy.Min(start + kernel, extent + pad)
                if not count_include_pad:
                    start, end = sympy.Max(start, 0), sympy.Min(end, extent)
                count = count * (end - start)
            return ops.to_dtype(ops.index_expr(count, torch.int64), compute)

        return function


def _window_value(
    ops: BodyRecorder,
    tensor: TensorValue,
    index: Index,
    windows: Windows,
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
    windows = Windows(tensor, kernel_size, stride, padding, dilation)
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
    windows = Windows(tensor, kernel_size, stride, padding)
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    compute = compute_dtype(tensor.dtype)
    context.realize_computed(tensor)
    divisor = windows.divisor(compute, ceil_mode, count_include_pad, divisor_override)

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
