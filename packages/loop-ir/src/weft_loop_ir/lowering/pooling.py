"""Pooling by windows of a given size, over the last two or three dims."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.concatenation import load_within
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_windows import (
    Windows,
    flat_position,
    fold,
    is_unrolled,
    register_pooling,
)
from weft_loop_ir.lowering.promotion import map_values
from weft_loop_ir.lowering.registry import NoLowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

BEHIND_ALL = 2**62
"""No element has this position."""


def lowest_value(dtype: torch.dtype) -> int | float:
    """What no value of ``dtype`` is below."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


class PooledWindows(Protocol):
    """Windows on the last ``rank`` dims: ``extents`` are the most elements that one has along each."""

    rank: int

    @property
    def extents(self) -> tuple[sympy.Expr, ...]: ...

    def place(
        self, ops: BodyRecorder, index: Index, offsets: Index
    ) -> tuple[Index, list[tuple[sympy.Expr, sympy.Expr]]]:
        """The position at ``offsets`` in the window of ``index``, and what says whether it is in it."""


@dataclass(frozen=True, eq=False)
class Elements:
    """The elements of ``tensor`` in each of ``windows``, in ``dtype``; ``other`` where there is none."""

    windows: PooledWindows
    tensor: TensorValue
    dtype: torch.dtype
    other: int | float

    def masked_value(
        self, ops: BodyRecorder, index: Index, offsets: Index
    ) -> tuple[Value, Value | None]:
        """The element at ``offsets`` in the window of ``index``, and the mask of its being in it."""
        place, bounds = self.windows.place(ops, index, offsets)
        where = (*index[: -self.windows.rank], *place)
        return load_within(ops, self.tensor, where, self.dtype, self.other, bounds)

    def value(self, ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        return self.masked_value(ops, index, offsets)[0]

    def position(self, ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        """The element's number in row-major order."""
        place, _ = self.windows.place(ops, index, offsets)
        extent = self.tensor.size[-self.windows.rank :]
        return ops.index_expr(flat_position(place, extent), torch.int64)


def _max_pool(
    rank: int,
    context: LoweringContext,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, TensorValue]:
    windows = Windows(rank, tensor.size, kernel_size, stride, padding, dilation)
    dtype = tensor.dtype
    if dtype == torch.bool:
        raise NoLowering("max pooling of bool")
    compute = compute_dtype(dtype)
    context.realize_computed(tensor)
    elements = Elements(windows, tensor, compute, lowest_value(compute))
    size = context.meta_size(0)
    unrolled = is_unrolled(size, windows.extents)
    if not unrolled and _overlap(windows):
        value = _maximum_by_dims(context, size, windows, tensor, compute)
    else:
        value = fold(context, "max", size, windows.extents, elements.value, [tensor], compute)
    if not unrolled:
        positions = place_of_maximum(context, size, elements, value)
        return map_values(context, [value], dtype, lambda ops, v: v), positions

    def position_of(ops: BodyRecorder, index: Index) -> Value:
        return _running_place(ops, index, windows, elements)

    count = 6 * len(_offsets(windows))
    positions = context.pointwise(
        size, torch.int64, tensor.device, position_of, [tensor], count, True
    )
    return map_values(context, [value], dtype, lambda ops, v: v), positions


def _overlap(windows: Windows) -> bool:
    """Whether each element lies in at least two windows along each dim."""
    return all(2 * s <= k for s, k in zip(windows.stride, windows.kernel, strict=True))


def _maximum_by_dims(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    windows: Windows,
    tensor: TensorValue,
    compute: torch.dtype,
) -> TensorValue:
    """The maxima of windows, along the last dim first: as many steps as the sum of a window's extents.

    Of equal zeros the first in row-major order is taken, as eager does.
    """
    current = tensor
    for k in reversed(range(windows.rank)):
        dim = len(size) - windows.rank + k
        along = (*current.size[:dim], size[dim], *current.size[dim + 1 :])
        term = functools.partial(_within_dim, windows, current, k, dim, compute)
        current = fold(context, "max", along, windows.extents[k : k + 1], term, [current], compute)
        context.realize(current)
    return current


def _within_dim(
    windows: Windows,
    source: TensorValue,
    k: int,
    dim: int,
    compute: torch.dtype,
    ops: BodyRecorder,
    index: Index,
    offsets: Index,
) -> Value:
    """The element at an offset along the ``k``-th dim of the windows, which is ``dim`` of the tensor."""
    position = windows.start(index)[k] + offsets[0] * windows.dilation[k]
    where = (*index[:dim], position, *index[dim + 1 :])
    bounds = [(position, windows.extent[k])]
    return load_within(ops, source, where, compute, lowest_value(compute), bounds)[0]


def _offsets(windows: Windows) -> list[Index]:
    steps = itertools.product(*map(range, windows.kernel))
    return [tuple(map(sympy.Integer, offsets)) for offsets in steps]


def _running_place(ops: BodyRecorder, index: Index, windows: Windows, elements: Elements) -> Value:
    """Where eager's loop over an unrolled window ends: at the first of equals, or at the last NaN."""
    best: Value | None = None
    first = flat_position(windows.first(ops, index), windows.extent)
    result = ops.index_expr(first, torch.int64)
    for offsets in _offsets(windows):
        value, mask = elements.masked_value(ops, index, offsets)
        if best is None:
            best = value
            continue
        better = ops.gt(value, best)
        if ops.dtype_of(value).is_floating_point:
            better = ops.logical_or(better, ops.isnan(value))
        if mask is not None:
            better = ops.logical_and(better, mask)
        result = ops.where(better, elements.position(ops, index, offsets), result)
        best = ops.where(better, value, best)
    return result


def place_of_maximum(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    elements: Elements,
    maximum: TensorValue,
) -> TensorValue:
    """The position of each window's ``maximum``: of the last NaN if there is one, else of the first equal."""
    extents, inputs = elements.windows.extents, [elements.tensor, maximum]
    context.realize(maximum)

    def first_equal(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        value, mask = elements.masked_value(ops, index, offsets)
        mine = ops.eq(value, maximum.load(ops, index))
        mine = mine if mask is None else ops.logical_and(mine, mask)
        return ops.where(mine, elements.position(ops, index, offsets), BEHIND_ALL)

    def last_nan(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        value = elements.value(ops, index, offsets)
        return ops.where(ops.isnan(value), elements.position(ops, index, offsets), -1)

    first = fold(context, "min", size, extents, first_equal, inputs, torch.int64)
    if not maximum.dtype.is_floating_point:
        return first
    last = fold(context, "max", size, extents, last_nan, inputs, torch.int64)

    def chosen(ops: Any, a: Value, b: Value, m: Value) -> Value:
        return ops.where(ops.isnan(m), b, a)  # type: ignore[no-any-return]

    return map_values(context, [first, last, maximum], torch.int64, chosen)


def _avg_pool(
    rank: int,
    context: LoweringContext,
    tensor: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    *options: Any,
) -> TensorValue:
    windows = Windows(rank, tensor.size, kernel_size, stride, padding)
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    compute = compute_dtype(tensor.dtype)
    context.realize_computed(tensor)
    divisor = windows.divisor(compute, ceil_mode, *options)
    return averaged(context, Elements(windows, tensor, compute, 0.0), divisor, instructions=2)


def averaged(
    context: LoweringContext,
    elements: Elements,
    divisor: Callable[[BodyRecorder, Index], Value],
    instructions: int,
) -> TensorValue:
    """The sum of each window's elements over its ``divisor``, which takes so many ``instructions``."""
    tensor, windows = elements.tensor, elements.windows
    total = fold(
        context,
        "sum",
        context.meta_size(),
        windows.extents,
        elements.value,
        [tensor],
        elements.dtype,
    )

    def average(ops: BodyRecorder, index: Index) -> Value:
        value = ops.truediv(total.load(ops, index), divisor(ops, index))
        return ops.to_dtype(value, tensor.dtype)

    return context.result(average, [total], instructions, True)


register_pooling("max_pool{}d_with_indices", _max_pool)
register_pooling("avg_pool{}d", _avg_pool)
