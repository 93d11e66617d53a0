"""Gradients of pooling, gathered: each input element adds up the windows that contain it.

Eager scatters window by window.  Gathering needs no atomics, has one order of additions whatever the number
of threads, and runs in lanes.

Copies of overlapping windows are added up so too: ``fold``, and the gradient of ``unfold``.  How many windows
contain an element does not depend on their size, only on how often they overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv
from weft_loop_ir.lowering.concatenation import bounds_mask, load_within
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_windows import Windows, flat_position, fold, register_pooling
from weft_loop_ir.lowering.promotion import require_float
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import normalize_dim
from weft_loop_ir.recording import BodyRecorder


class ContainingWindows(Protocol):
    """The windows that contain an element: ``extents`` are the most along each of the last dims.

    Up to ``max_unrolled`` of them are unrolled in one body, each of so many ``instructions``; more are a
    reduction.
    """

    max_unrolled: int
    instructions: int
    extents: tuple[sympy.Expr, ...]

    def window(self, ops: BodyRecorder, index: Index, offsets: Index) -> tuple[Index, Value | None]:
        """The window number ``offsets`` of those of the element at ``index``, and whether it is one."""


class Containing:
    """The windows that may contain an element: along each dim, the last one that does and some before it.

    ``counts``: how many windows there are.  Those that the element lies between, or behind, count as
    containing it unless ``exact``.
    """

    max_unrolled = 16
    instructions = 8

    def __init__(
        self, windows: Windows, counts: Sequence[sympy.Expr] = (), *, exact: bool = True
    ) -> None:
        self.windows, self.counts, self.exact = windows, counts, exact
        spans = zip(windows.span, windows.stride, strict=True)
        self.extents = tuple(sympy.Integer(-(-span // stride)) for span, stride in spans)

    def place(
        self, ops: BodyRecorder, index: Index, offsets: Index
    ) -> tuple[Index, list[tuple[sympy.Expr, sympy.Expr]]]:
        """The window number ``offsets`` of those that may contain the element at ``index``.

        Besides it pairs ``(offset in the window, span of the window)``, which say whether it does.
        """
        windows = self.windows
        position, reached = [], []
        for k, place in enumerate(index[-windows.rank :]):
            padded, stride = place + windows.padding[k], sympy.Integer(windows.stride[k])
            back = self.extents[k] - 1 - offsets[k]
            position.append(ops.ranges.floor_div(padded, stride) - back)
            offset = ops.ranges.modulo(padded, stride) + back * stride
            reached.append((offset, sympy.Integer(windows.span[k])))
        return tuple(position), reached

    def window(self, ops: BodyRecorder, index: Index, offsets: Index) -> tuple[Index, Value | None]:
        position, reached = self.place(ops, index, offsets)
        inside = [*zip(position, self.counts, strict=True), *(reached if self.exact else ())]
        return position, bounds_mask(ops, inside)


def added_up(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    containing: ContainingWindows,
    term: Callable[[BodyRecorder, Index, Index], Value],
    inputs: Sequence[TensorValue],
) -> TensorValue:
    """What windows hold of a tensor of ``size``, in the dtype of the first of ``inputs``, added up."""
    dtype = inputs[0].dtype
    total = fold(
        context,
        "sum",
        size,
        containing.extents,
        term,
        inputs,
        compute_dtype(dtype),
        limit=containing.max_unrolled,
        instructions=containing.instructions,
    )
    return cast(context, total, dtype)


def picked_gradients(
    context: LoweringContext,
    containing: ContainingWindows,
    tensor: TensorValue,
    grad: TensorValue,
    indices: TensorValue,
) -> TensorValue:
    """For each element of ``tensor`` the gradients of the windows that have their maximum there."""
    rank, compute = len(containing.extents), compute_dtype(grad.dtype)
    context.realize_computed(grad)
    context.realize_computed(indices)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        window, inside = containing.window(ops, index, offsets)
        where = (*index[:-rank], *window)
        position = flat_position(index[-rank:], tensor.size[-rank:])

        def picked(nested: Any) -> Value:
            value = nested.to_dtype(grad.load(nested, where), compute)
            here = nested.index_expr(position, torch.int64)
            mine = nested.eq(nested.to_dtype(indices.load(nested, where), torch.int64), here)
            return nested.where(mine, value, 0.0)  # type: ignore[no-any-return]

        return picked(ops) if inside is None else ops.masked(inside, picked, 0.0)

    return added_up(context, tensor.size, containing, term, [grad, indices])


def shared_gradients(
    context: LoweringContext,
    containing: ContainingWindows,
    tensor: TensorValue,
    grad: TensorValue,
    divisor: Callable[[BodyRecorder, Index], Value],
) -> TensorValue:
    """For each element of ``tensor`` the gradients of its windows, each by the ``divisor`` of its average."""
    rank, compute = len(containing.extents), compute_dtype(grad.dtype)
    context.realize_computed(grad)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        window, inside = containing.window(ops, index, offsets)
        where = (*index[:-rank], *window)

        def share(nested: Any) -> Value:
            value = nested.to_dtype(grad.load(nested, where), compute)
            return nested.truediv(value, divisor(nested, where))  # type: ignore[no-any-return]

        return share(ops) if inside is None else ops.masked(inside, share, 0.0)

    return added_up(context, tensor.size, containing, term, [grad])


def _max_pool_backward(
    rank: int,
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
    windows = Windows(rank, tensor.size, kernel_size, stride, padding, dilation)
    containing = Containing(windows, grad.size[-rank:], exact=False)  # the indices tell
    return picked_gradients(context, containing, tensor, grad, indices)


def _avg_pool_backward(
    rank: int,
    context: LoweringContext,
    grad: TensorValue,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    *options: Any,
) -> TensorValue:
    windows = Windows(rank, tensor.size, kernel_size, stride, padding)
    divisor = windows.divisor(compute_dtype(grad.dtype), ceil_mode, *options)
    containing = Containing(windows, grad.size[-rank:])
    return shared_gradients(context, containing, tensor, grad, divisor)


register_pooling("max_pool{}d_with_indices_backward", _max_pool_backward)
register_pooling("avg_pool{}d_backward", _avg_pool_backward)


# -- copies of overlapping windows ---------------------------------------------------------------------


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
