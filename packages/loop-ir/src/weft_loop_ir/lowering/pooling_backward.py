"""Gradients of pooling, gathered: each input element adds up the windows that contain it.

Eager scatters window by window.  Gathering needs no atomics, has one order of additions whatever the number
of threads, and runs in lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_windows import Windows, flat_position, fold
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
MAX_CONTAINING_WINDOWS = 16
"""Windows that may contain one element and are unrolled in one body; more are a reduction."""


class Containing:
    """The windows that may contain an element: along each dim, the last one that does and some before it."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        spans = zip(windows.span, windows.stride, strict=True)
        self.extents = tuple(sympy.Integer(-(-span // stride)) for span, stride in spans)

    def window(
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


def picked_gradient(
    ops: BodyRecorder,
    grad: TensorValue,
    indices: TensorValue,
    where: Index,
    mask: Value | None,
    position: sympy.Expr,
    dtype: torch.dtype,
) -> Value:
    """The gradient of the window at ``where`` if it has its maximum at ``position``, else 0."""

    def picked(nested: Any) -> Value:
        value = nested.to_dtype(grad.load(nested, where), dtype)
        here = nested.index_expr(position, torch.int64)
        mine = nested.eq(nested.to_dtype(indices.load(nested, where), torch.int64), here)
        return nested.where(mine, value, 0.0)  # type: ignore[no-any-return]

    return picked(ops) if mask is None else ops.masked(mask, picked, 0.0)


def added_up(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    containing: Containing,
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
        limit=MAX_CONTAINING_WINDOWS,
        instructions=8,
    )
    return cast(context, total, dtype)


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
    check_supported(tensor.dtype)
    windows = Windows(rank, tensor.size, kernel_size, stride, padding, dilation)
    containing = Containing(windows)
    check_supported(grad.dtype)
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)
    context.realize_computed(indices)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        window, _ = containing.window(ops, index, offsets)
        mask = bounds_mask(ops, list(zip(window, grad.size[-rank:], strict=True)))
        where = (*index[:-rank], *window)
        position = flat_position(index[-rank:], windows.extent)
        return picked_gradient(ops, grad, indices, where, mask, position, compute)

    return added_up(context, tensor.size, containing, term, [grad, indices])


def _avg_pool_backward(
    rank: int,
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
    check_supported(tensor.dtype)
    windows = Windows(rank, tensor.size, kernel_size, stride, padding)
    containing = Containing(windows)
    check_supported(grad.dtype)
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)
    divisor = windows.divisor(compute, ceil_mode, count_include_pad, divisor_override)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        window, reached = containing.window(ops, index, offsets)
        where = (*index[:-rank], *window)
        mask = bounds_mask(ops, [*zip(window, grad.size[-rank:], strict=True), *reached])

        def share(nested: Any) -> Value:
            value = nested.to_dtype(grad.load(nested, where), compute)
            return nested.truediv(value, divisor(nested, where))  # type: ignore[no-any-return]

        return share(ops) if mask is None else ops.masked(mask, share, 0.0)

    return added_up(context, tensor.size, containing, term, [grad])


_RULES = (
    # rule, dims, overload
    (_max_pool_backward, 2, aten.max_pool2d_with_indices_backward.default),
    (_max_pool_backward, 3, aten.max_pool3d_with_indices_backward.default),
    (_avg_pool_backward, 2, aten.avg_pool2d_backward.default),
    (_avg_pool_backward, 3, aten.avg_pool3d_backward.default),
)
for _rule, _rank, _overload in _RULES:
    register_lowering(_overload)(functools.partial(_rule, _rank))
