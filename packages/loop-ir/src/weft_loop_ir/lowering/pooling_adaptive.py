"""Pooling to a given size, and its gradients: windows start and end at rounded fractions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv, product, to_expression
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling import Elements, averaged, lowest_value, place_of_maximum
from weft_loop_ir.lowering.pooling_backward import picked_gradients, shared_gradients
from weft_loop_ir.lowering.pooling_windows import (
    MAX_UNROLLED_WINDOW,
    fold,
    register_pooling,
    table,
)
from weft_loop_ir.lowering.promotion import map_values
from weft_loop_ir.lowering.reductions import cast, over_dims
from weft_loop_ir.lowering.registry import NoLowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import reshape
from weft_loop_ir.recording import BodyRecorder


@dataclass(frozen=True)
class Dimension:
    """One pooled dim: window ``o`` is ``[o * source // target, ceil((o + 1) * source / target))``."""

    source: sympy.Expr
    target: sympy.Expr

    def start(self, ops: BodyRecorder, window: sympy.Expr) -> sympy.Expr:
        return ops.ranges.floor_div(window * self.source, self.target)

    def end(self, ops: BodyRecorder, window: sympy.Expr) -> sympy.Expr:
        reached = sympy.expand((window + 1) * self.source) + self.target - 1
        return ops.ranges.floor_div(reached, self.target)

    def transposed(self) -> Dimension:
        """The windows that contain an element, as windows on the windows."""
        return Dimension(self.target, self.source)

    @property
    def longest(self) -> sympy.Expr:
        """The most elements of a window; of symbolic sizes, at least as many."""
        if self.source == self.target:
            return sympy.S.One
        if isinstance(self.source, sympy.Integer) and isinstance(self.target, sympy.Integer):
            source, target = int(self.source), int(self.target)
            windows = range(min(target, source * target))
            return sympy.Integer(
                max(-(-(o + 1) * source // target) - o * source // target for o in windows)
            )
        return FloorDiv(self.source + self.target - 1, self.target) + 1


class AdaptiveWindows:
    """The windows of adaptive pooling of the last dims of ``source`` to those of ``target``."""

    def __init__(self, rank: int, source: Sequence[Any], target: Sequence[Any]) -> None:
        if 0 in (*source[-rank:], *target[-rank:]):
            raise NoLowering("adaptive pooling of nothing")
        sizes = zip(source[-rank:], target[-rank:], strict=True)
        self.rank = rank
        self.dims = [Dimension(to_expression(s), to_expression(t)) for s, t in sizes]

    @property
    def extents(self) -> tuple[sympy.Expr, ...]:
        """The most elements of a window along each dim."""
        return tuple(d.longest for d in self.dims)

    def place(
        self, ops: BodyRecorder, index: Index, offsets: Index
    ) -> tuple[Index, list[tuple[sympy.Expr, sympy.Expr]]]:
        """The position at ``offsets`` in the window of ``index``, and what says whether it is in it."""
        position, bounds = [], []
        for dim, window, offset in zip(self.dims, index[-self.rank :], offsets, strict=True):
            start = dim.start(ops, window)
            position.append(start + offset)
            bounds.append((offset, dim.end(ops, window) - start))
        return tuple(position), bounds

    def count(self, ops: BodyRecorder, index: Index, dtype: torch.dtype) -> Value:
        """The number of elements of a window."""
        lengths = (
            dim.end(ops, window) - dim.start(ops, window)
            for dim, window in zip(self.dims, index[-self.rank :], strict=True)
        )
        return ops.to_dtype(ops.index_expr(product(tuple(lengths)), torch.int64), dtype)

    def containing(self, context: LoweringContext, device: torch.device) -> Containing:
        """For each element the windows that contain it."""
        return Containing(context, self.dims, device)


class Containing:
    """The windows that contain an element, as tables along each dim: divisions are slow for each element."""

    max_unrolled = MAX_UNROLLED_WINDOW
    instructions = 4

    def __init__(
        self, context: LoweringContext, dims: Sequence[Dimension], device: torch.device
    ) -> None:
        self.rank = len(dims)
        self.targets = [dim.target for dim in dims]
        back = [dim.transposed() for dim in dims]
        self.extents = tuple(dim.longest for dim in back)

        def tabulated(dim: Dimension, place: Any) -> TensorValue:
            def function(ops: BodyRecorder, index: Index) -> Value:
                return ops.index_expr(place(dim, ops, index[0]), torch.int64)

            return table(context, (dim.target,), torch.int64, device, function)

        self.starts = [tabulated(dim, Dimension.start) for dim in back]
        self.ends = [tabulated(dim, Dimension.end) for dim in back]
        self.counts = [
            tabulated(dim, lambda d, ops, w: d.end(ops, w) - d.start(ops, w)) for dim in dims
        ]

    def window(self, ops: BodyRecorder, index: Index, offsets: Index) -> tuple[Index, Value]:
        """The window number ``offsets`` from the first one, and whether it contains the element."""
        position: list[sympy.Expr] = []
        inside: list[Value] = []
        for k, (place, offset) in enumerate(zip(index[-self.rank :], offsets, strict=True)):
            start = self.starts[k].load(ops, (place,))
            number = ops.add(start, ops.index_expr(offset, torch.int64))
            inside.append(ops.lt(number, self.ends[k].load(ops, (place,))))
            position.append(ops.indirect_symbol(start, self.targets[k], False) + offset)
        return tuple(position), functools.reduce(ops.logical_and, inside)

    def count(self, ops: BodyRecorder, window: Index, dtype: torch.dtype) -> Value:
        """The number of elements of a window."""
        tables = zip(self.counts, window[-self.rank :], strict=True)
        lengths = [counts.load(ops, (place,)) for counts, place in tables]
        return ops.to_dtype(functools.reduce(ops.mul, lengths), dtype)


def _tiles(rank: int, source: tuple[sympy.Expr, ...], target: tuple[sympy.Expr, ...]) -> bool:
    """Whether the windows tile the input."""
    if all(n == 1 for n in target[-rank:]):
        return 0 not in source[-rank:]
    return all(
        isinstance(n, sympy.Integer) and isinstance(m, sympy.Integer) and m != 0 and n % m == 0
        for n, m in zip(source[-rank:], target[-rank:], strict=True)
    )


def _adaptive_avg_pool(
    rank: int, context: LoweringContext, tensor: TensorValue, output_size: Sequence[Any]
) -> TensorValue:
    """A reduction where windows tile the input, windows with masks where they overlap."""
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    compute = compute_dtype(tensor.dtype)
    target = context.meta_size()
    if _tiles(rank, tensor.size, target):
        return _tiled_average(rank, context, tensor, target)
    windows = AdaptiveWindows(rank, tensor.size, target)
    context.realize_computed(tensor)
    elements = Elements(windows, tensor, compute, 0.0)
    count = functools.partial(windows.count, dtype=compute)
    return averaged(context, elements, count, instructions=4)


def _tiled_average(
    rank: int, context: LoweringContext, tensor: TensorValue, target: tuple[sympy.Expr, ...]
) -> TensorValue:
    compute = compute_dtype(tensor.dtype)
    context.realize_computed(tensor)
    kept = tensor.size[:-rank]
    lengths = [n / m for n, m in zip(tensor.size[-rank:], target[-rank:], strict=True)]
    pairs = zip(target[-rank:], lengths, strict=True)
    split = reshape(tensor, (*kept, *(n for pair in pairs for n in pair)))
    reduced = [len(kept) + 2 * k + 1 for k in range(rank)]
    (total,) = over_dims(context, split, ["sum"], reduced, False, compute)

    def average(ops: Any, value: Value) -> Value:
        return ops.truediv(value, product(tuple(lengths)))  # type: ignore[no-any-return]

    return map_values(context, [total], tensor.dtype, average)


def _adaptive_avg_pool_backward(
    rank: int, context: LoweringContext, grad: TensorValue, tensor: TensorValue
) -> TensorValue:
    back = AdaptiveWindows(rank, tensor.size, grad.size).containing(context, grad.device)
    count = functools.partial(back.count, dtype=compute_dtype(grad.dtype))
    return shared_gradients(context, back, tensor, grad, count)


def _adaptive_max_pool(
    rank: int, context: LoweringContext, tensor: TensorValue, output_size: Sequence[Any]
) -> tuple[TensorValue, TensorValue]:
    if not tensor.dtype.is_floating_point:
        raise NoLowering("max pooling of integers")
    compute = compute_dtype(tensor.dtype)
    size = context.meta_size(0)
    windows = AdaptiveWindows(rank, tensor.size, size)
    context.realize_computed(tensor)
    elements = Elements(windows, tensor, compute, lowest_value(compute))
    value = fold(context, "max", size, windows.extents, elements.value, [tensor], compute)
    return cast(context, value, tensor.dtype), place_of_maximum(context, size, elements, value)


def _adaptive_max_pool_backward(
    rank: int,
    context: LoweringContext,
    grad: TensorValue,
    tensor: TensorValue,
    indices: TensorValue,
) -> TensorValue:
    back = AdaptiveWindows(rank, tensor.size, grad.size).containing(context, grad.device)
    return picked_gradients(context, back, tensor, grad, indices)


register_pooling("_adaptive_avg_pool{}d", _adaptive_avg_pool)
register_pooling("_adaptive_avg_pool{}d_backward", _adaptive_avg_pool_backward)
register_pooling("adaptive_max_pool{}d", _adaptive_max_pool)
register_pooling("adaptive_max_pool{}d_backward", _adaptive_max_pool_backward)
