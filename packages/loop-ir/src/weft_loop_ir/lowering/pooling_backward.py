"""Gradients of pooling, gathered: each input element adds up the windows that contain it.

Eager scatters window by window.  Gathering needs no atomics, has one order of additions whatever the number
of threads, and runs in lanes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling import Windows
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
MAX_CONTAINING_WINDOWS = 16
"""Windows that may contain one element and are unrolled in one body; more are extern."""


def _containing(
    ops: BodyRecorder, windows: Windows, index: Index
) -> Iterator[tuple[tuple[sympy.Expr, sympy.Expr], list[tuple[sympy.Expr, sympy.Expr]]]]:
    """The windows that may contain the element at ``index``, in row-major order.

    For each: its position, and pairs ``(offset in the window, extent of the window)`` that say whether it
    does, where that isn't so for all elements.
    """
    choices = []
    for place, kernel, stride, padding in zip(
        index[-2:], windows.kernel, windows.stride, windows.padding, strict=True
    ):
        padded = place + padding
        last = ops.ranges.floor_div(padded, sympy.Integer(stride))
        offset = ops.ranges.modulo(padded, sympy.Integer(stride))
        along = []
        for back in reversed(range(-(-kernel // stride))):
            reach = offset + back * stride
            sure = (back + 1) * stride <= kernel
            along.append((last - back, [] if sure else [(reach, sympy.Integer(kernel))]))
        choices.append(along)
    for (row, rows), (column, columns) in itertools.product(*choices):
        yield (row, column), rows + columns


def _count(windows: Windows) -> int:
    """How many windows may contain one element; raises :class:`NoLowering` for many, and for dilation."""
    if windows.dilation != (1, 1):
        raise NoLowering("dilation")
    (kernel0, kernel1), (stride0, stride1) = windows.kernel, windows.stride
    count = -(-kernel0 // stride0) * -(-kernel1 // stride1)
    if count > MAX_CONTAINING_WINDOWS:
        raise NoLowering("many windows over one element")
    return count


@register_lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    context: LoweringContext,
    grad: TensorValue,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    windows = Windows(tensor, kernel_size, stride, padding, dilation)
    count = _count(windows)
    check_supported(grad.dtype)
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)
    context.realize_computed(indices)

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        position = index[-2] * tensor.size[-1] + index[-1]
        for window, _ in _containing(ops, windows, index):
            where = (*index[:-2], *window)
            mask = bounds_mask(ops, list(zip(window, grad.size[-2:], strict=True)))

            def picked(nested: Any, where: Index = where) -> Value:
                value = nested.to_dtype(grad.load(nested, where), compute)
                here = nested.index_expr(position, torch.int64)
                mine = nested.eq(indices.load(nested, where), here)
                return nested.where(mine, value, nested.constant(0.0, compute))  # type: ignore[no-any-return]

            value = picked(ops) if mask is None else ops.masked(mask, picked, 0.0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return ops.to_dtype(total, grad.dtype)

    return context.pointwise(
        tensor.size, grad.dtype, grad.device, function, [grad, indices], 8 * count, True
    )


@register_lowering(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    context: LoweringContext,
    grad: TensorValue,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    windows = Windows(tensor, kernel_size, stride, padding)
    count = _count(windows)
    check_supported(grad.dtype)
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)
    divisor = windows.divisor(compute, ceil_mode, count_include_pad, divisor_override)

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        for window, contained in _containing(ops, windows, index):
            where = (*index[:-2], *window)
            bounds = [*zip(window, grad.size[-2:], strict=True), *contained]
            mask = bounds_mask(ops, bounds)

            def share(nested: Any, where: Index = where) -> Value:
                value = nested.to_dtype(grad.load(nested, where), compute)
                return nested.truediv(value, divisor(nested, where))  # type: ignore[no-any-return]

            value = share(ops) if mask is None else ops.masked(mask, share, 0.0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return ops.to_dtype(total, grad.dtype)

    return context.pointwise(
        tensor.size, grad.dtype, grad.device, function, [grad], 8 * count, True
    )
