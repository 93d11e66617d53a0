"""Copies of overlapping windows, added up where they overlap: ``fold``, and the gradient of ``unfold``.

Gathered as gradients of pooling are: each element adds up what the windows that contain it hold of it.
How many these are does not depend on a window's size, only on how often windows overlap.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv
from weft_loop_ir.lowering.concatenation import load_within
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_backward import Containing, added_up
from weft_loop_ir.lowering.pooling_windows import Windows
from weft_loop_ir.lowering.promotion import require_float
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import normalize_dim
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


@register_lowering(aten.col2im.default)
def col2im(
    context: LoweringContext,
    columns: TensorValue,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> TensorValue:
    """``columns [n, channels * taps, windows]`` to images ``[n, channels, *output_size]``; n is optional."""
    require_float(columns)
    size, dtype = context.meta_size(), compute_dtype(columns.dtype)
    windows = Windows(2, size, kernel_size, stride, padding, dilation)
    containing = Containing(windows)
    counts = [
        FloorDiv(extent + 2 * padded - span, step) + 1
        for extent, padded, span, step in zip(
            windows.extent, windows.padding, windows.span, windows.stride, strict=True
        )
    ]
    context.realize_computed(columns)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        latest_first = _reversed(offsets, containing)
        window, reached = containing.place(ops, index, latest_first)
        inside, taps, channel = [*zip(window, counts, strict=True), *reached], [], index[-3]
        for (offset, _), gap, kernel in zip(reached, windows.dilation, windows.kernel, strict=True):
            step = sympy.Integer(gap)
            taps.append(ops.ranges.floor_div(offset, step))
            inside.append((ops.ranges.modulo(offset, step), sympy.S.One))
            channel = channel * kernel + taps[-1]
        where = (*index[:-3], channel, window[0] * counts[1] + window[1])
        return load_within(ops, columns, where, dtype, 0.0, inside)[0]

    return added_up(context, size, containing, term, [columns])


@register_lowering(aten.unfold_backward.default)
def unfold_backward(
    context: LoweringContext,
    grad: TensorValue,
    input_sizes: Any,
    dimension: int,
    size: Any,
    step: Any,
) -> TensorValue:
    """``grad`` has the windows where the tensor had ``dimension``, and their elements last."""
    require_float(grad)
    result, dtype = context.meta_size(), compute_dtype(grad.dtype)
    if not result:
        raise NoLowering("a window on a number")
    dim = normalize_dim(dimension, len(result))
    windows = Windows(1, result[dim : dim + 1], size, step, 0)
    containing = Containing(windows)
    context.realize_computed(grad)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        latest_first = _reversed(offsets, containing)
        (window,), reached = containing.place(ops, index[dim : dim + 1], latest_first)
        ((offset, _),) = reached
        where = (*index[:dim], window, *index[dim + 1 :], offset)
        inside = [(window, grad.size[dim]), *reached]
        return load_within(ops, grad, where, dtype, 0.0, inside)[0]

    return added_up(context, result, containing, term, [grad])


def _reversed(offsets: Index, containing: Containing) -> Index:
    """From the last window that contains an element to the first: by places in them, as eager adds up."""
    return tuple(n - 1 - k for n, k in zip(containing.extents, offsets, strict=True))
