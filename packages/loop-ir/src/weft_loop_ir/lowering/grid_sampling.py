"""``grid_sample`` in two and three dims: interpolation at places that a tensor gives, and its gradients.

Along each dim a place has one tap (nearest), two (linear) or four (cubic), each an element's number, a
weight, and whether the element is there.  Source: torch's documentation of ``grid_sample``.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import contiguous_stride
from weft_loop_ir.lowering.concatenation import load_where
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, constant_tensor
from weft_loop_ir.lowering.indexing import check_atomic, store
from weft_loop_ir.lowering.interpolation import CUBIC, cubic_weights, polynomial
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


class Mode(enum.IntEnum):
    """``interpolation_mode`` as the operators number it."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2


class Padding(enum.IntEnum):
    """``padding_mode`` as the operators number it."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


@dataclass(frozen=True)
class Tap:
    """One element that a place is made of: ``slope`` is the weight's derivative by the place."""

    symbol: sympy.Symbol
    weight: Value
    slope: Value
    inside: Value


@dataclass(frozen=True)
class Moved:
    """A place brought back into the tensor, and how much it moves when the place does."""

    place: Value
    slope: Value


@dataclass(frozen=True)
class GridAxis:
    """One sampled dim of ``extent`` elements; places are in ``dtype``."""

    extent: sympy.Expr
    padding: Padding
    align_corners: bool
    vectorized: bool
    dtype: torch.dtype

    def number(self, ops: BodyRecorder, value: Any) -> Value:
        return ops.number(value, self.dtype)

    def unnormalized(self, ops: BodyRecorder, coordinate: Value) -> Moved:
        """The place for a coordinate from -1 to 1."""
        extent, shifted = self.number(ops, self.extent), ops.add(coordinate, 1.0)
        if self.align_corners:
            last = ops.sub(extent, 1.0)
            return Moved(ops.mul(ops.truediv(shifted, 2.0), last), ops.truediv(last, 2.0))
        place = ops.truediv(ops.sub(ops.mul(shifted, extent), 1.0), 2.0)
        return Moved(place, ops.truediv(extent, 2.0))

    def padded(self, ops: BodyRecorder, place: Value) -> Moved:
        """``place`` after padding."""
        if self.padding is Padding.ZEROS:
            return Moved(place, self.number(ops, 1.0))
        if self.padding is Padding.BORDER:
            return self._clipped(ops, place)
        reflected = self._reflected(ops, place)
        clipped = self._clipped(ops, reflected.place)
        return Moved(clipped.place, ops.mul(reflected.slope, clipped.slope))

    def _clipped(self, ops: BodyRecorder, place: Value) -> Moved:
        """Eager's vectorized kernel takes NaN for the first element, its plain one for the last."""
        last = self.number(ops, self.extent - 1)
        after, before = ops.gt(place, 0.0), ops.lt(place, last)
        clipped = (
            ops.minimum(ops.where(after, place, 0.0), last)
            if self.vectorized
            else ops.maximum(ops.where(before, place, last), 0.0)
        )
        inside = ops.logical_and(after, before)
        return Moved(clipped, ops.where(inside, self.number(ops, 1.0), 0.0))

    def _reflected(self, ops: BodyRecorder, place: Value) -> Moved:
        """Reflected at the first and last elements, or at the outer edges of them."""
        low = 0.0 if self.align_corners else -0.5
        span = self.number(ops, self.extent - 1 if self.align_corners else self.extent)
        moved = ops.sub(place, low)
        distance = ops.abs(moved)
        rest = ops.fmod(distance, span)
        flips = ops.floor(ops.truediv(distance, span))
        even = ops.eq(ops.fmod(flips, 2.0), 0.0)
        reflected = ops.add(ops.where(even, rest, ops.sub(span, rest)), low)
        slope = ops.where(ops.lt(moved, 0.0), -1.0, self.number(ops, 1.0))
        slope = ops.where(even, slope, ops.neg(slope))
        point = ops.eq(span, 0.0)
        return Moved(ops.where(point, 0.0, reflected), ops.where(point, 0.0, slope))

    def tap(self, ops: BodyRecorder, place: Value, weight: Value, slope: Value) -> Tap:
        """The tap of the element at a whole ``place``, which may be none."""
        last = self.number(ops, self.extent - 1)
        inside = ops.logical_and(ops.ge(place, 0.0), ops.le(place, last))
        number = ops.to_dtype(ops.where(inside, place, 0.0), torch.int64)
        return Tap(ops.indirect_symbol(number, self.extent, False), weight, slope, inside)


def _nearest(ops: BodyRecorder, axis: GridAxis, coordinate: Value) -> list[Tap]:
    place = axis.padded(ops, axis.unnormalized(ops, coordinate).place).place
    return [axis.tap(ops, ops.round(place), axis.number(ops, 1.0), axis.number(ops, 0.0))]


def _linear(ops: BodyRecorder, axis: GridAxis, coordinate: Value) -> list[Tap]:
    given = axis.unnormalized(ops, coordinate)
    moved = axis.padded(ops, given.place)
    near = ops.floor(moved.place)
    far = ops.add(near, 1.0)
    slope = ops.mul(given.slope, moved.slope)
    return [
        axis.tap(ops, near, ops.sub(far, moved.place), ops.neg(slope)),
        axis.tap(ops, far, ops.sub(moved.place, near), slope),
    ]


def _cubic(ops: BodyRecorder, axis: GridAxis, coordinate: Value) -> list[Tap]:
    given = axis.unnormalized(ops, coordinate)
    start = ops.floor(given.place)
    fraction = ops.sub(given.place, start)
    weights = cubic_weights(ops, fraction, axis.dtype)
    slopes = _cubic_slopes(ops, fraction, axis.dtype)
    taps = []
    for step, weight, slope in zip(range(-1, 3), weights, slopes, strict=True):
        element = axis.padded(ops, ops.add(start, float(step))).place
        taps.append(axis.tap(ops, element, weight, ops.mul(slope, given.slope)))
    return taps


def _cubic_slopes(ops: Any, fraction: Value, dtype: torch.dtype) -> list[Value]:
    """The derivatives of :func:`cubic_weights` by ``fraction``."""

    def near(x: Value) -> Value:
        return polynomial(ops, dtype, x, 3 * (CUBIC + 2), -2 * (CUBIC + 3), 0.0)

    def far(x: Value) -> Value:
        return polynomial(ops, dtype, x, 3 * CUBIC, -10 * CUBIC, 8 * CUBIC)

    rest = ops.sub(1.0, fraction)
    first, last = ops.add(fraction, 1.0), ops.add(rest, 1.0)
    return [far(first), near(fraction), ops.neg(near(rest)), ops.neg(far(last))]


TAPS = {Mode.NEAREST: _nearest, Mode.LINEAR: _linear, Mode.CUBIC: _cubic}


class Sampler:
    """The taps of all dims for an index of the grid, ``(batch, *place)``."""

    def __init__(
        self, tensor: TensorValue, grid: TensorValue, mode: int, padding: int, align_corners: bool
    ) -> None:
        if grid.dtype != tensor.dtype or not tensor.dtype.is_floating_point:
            raise NoLowering(f"sampling of {tensor.dtype} at {grid.dtype}")
        self.rank = len(tensor.size) - 2
        self.dtype = compute_dtype(tensor.dtype)
        self.tensor, self.grid, self.mode = tensor, grid, Mode(mode)
        self.axes = [
            GridAxis(extent, Padding(padding), align_corners, self.rank == 2, self.dtype)
            for extent in tensor.size[2:]
        ]

    def taps(self, ops: BodyRecorder, index: Index) -> list[list[Tap]]:
        """The taps of each dim; a grid names places from the last dim to the first."""
        result = []
        for k, axis in enumerate(self.axes):
            component = sympy.Integer(self.rank - 1 - k)
            coordinate = ops.to_dtype(self.grid.load(ops, (*index, component)), self.dtype)
            result.append(TAPS[self.mode](ops, axis, coordinate))
        return result

    def value(self, ops: BodyRecorder, batch: Any, channel: Any, taps: Sequence[Tap]) -> Value:
        """The element at ``taps``, 0 where there is none."""
        where = (batch, channel, *(tap.symbol for tap in taps))
        return load_where(ops, inside_all(ops, taps), self.tensor, where, self.dtype, 0.0)

    def weighted(self, ops: BodyRecorder, value: Value, taps: Sequence[Tap], weights: Any) -> Value:
        """``value`` times ``weights``; eager's plain kernel leaves out what isn't there, NaN weights too."""
        product = functools.reduce(ops.mul, weights, value)
        if self.axes[0].vectorized:
            return product
        return ops.where(inside_all(ops, taps), product, 0.0)


def inside_all(ops: BodyRecorder, taps: Sequence[Tap]) -> Value:
    """Whether the element at ``taps`` is there."""
    return functools.reduce(ops.logical_and, [tap.inside for tap in taps])


def _grid_sampler(
    context: LoweringContext,
    tensor: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> TensorValue:
    sampler = Sampler(tensor, grid, interpolation_mode, padding_mode, align_corners)
    context.realize_computed(tensor)
    context.realize_computed(grid)

    def function(ops: BodyRecorder, index: Index) -> Value:
        batch, channel = index[:2]
        parts = []
        for taps in itertools.product(*sampler.taps(ops, (batch, *index[2:]))):
            value = sampler.value(ops, batch, channel, taps)
            parts.append(sampler.weighted(ops, value, taps, [tap.weight for tap in taps]))
        return ops.to_dtype(functools.reduce(ops.add, parts), tensor.dtype)

    return context.result(function, [tensor, grid], 60, True)


def _grid_sampler_backward(
    context: LoweringContext,
    grad: TensorValue,
    tensor: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, TensorValue | None]:
    sampler = Sampler(tensor, grid, interpolation_mode, padding_mode, align_corners)
    if output_mask[0]:
        check_atomic(context, tensor.dtype)
    for read in (grad, tensor, grid):
        context.realize_computed(read)
    return (
        _gradient_of_input(context, sampler, grad) if output_mask[0] else None,
        _gradient_of_grid(context, sampler, grad) if output_mask[1] else None,
    )


def _gradient_of_input(
    context: LoweringContext, sampler: Sampler, grad: TensorValue
) -> TensorValue:
    tensor = sampler.tensor
    zeros = constant_tensor(context, tensor.size, 0.0, tensor.dtype, tensor.device)
    target = context.realize(context.copy_of(zeros, contiguous_stride(tensor.size)))

    def program(ops: BodyRecorder, index: Index) -> None:
        batch, channel = index[:2]
        value = ops.to_dtype(grad.load(ops, index), sampler.dtype)
        for taps in itertools.product(*sampler.taps(ops, (batch, *index[2:]))):
            share = functools.reduce(ops.mul, [tap.weight for tap in taps], value)
            share = ops.where(inside_all(ops, taps), share, 0.0)
            where = (batch, channel, *(tap.symbol for tap in taps))
            store(ops, target, where, ops.to_dtype(share, tensor.dtype), "atomic_add")

    context.program_node(grad.size, program, context.origin())
    return target


def _gradient_of_grid(context: LoweringContext, sampler: Sampler, grad: TensorValue) -> TensorValue:
    """For each component of a place, the sum over channels of what the result gains by it."""

    def term(ops: BodyRecorder, index: Index, reduced: Index) -> Value:
        batch, component = index[0], ops.index_expr(index[-1], torch.int64)
        along = sampler.taps(ops, index[:-1])
        mine = [ops.eq(component, sampler.rank - 1 - k) for k in range(sampler.rank)]
        parts = []
        for taps in itertools.product(*along):
            value = sampler.value(ops, batch, reduced[0], taps)
            factors = [
                ops.where(own, tap.slope, tap.weight) for own, tap in zip(mine, taps, strict=True)
            ]
            parts.append(sampler.weighted(ops, value, taps, factors))
        given = ops.to_dtype(grad.load(ops, (batch, reduced[0], *index[1:-1])), sampler.dtype)
        return ops.mul(given, functools.reduce(ops.add, parts))

    grid, tensor = sampler.grid, sampler.tensor
    inputs = [grad, tensor, grid]
    (total,) = context.reduce(
        ["sum"], grid.size, (tensor.size[1],), term, inputs, sampler.dtype, grid.device
    )
    return cast(context, total, grid.dtype)


register_lowering(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)(_grid_sampler)
register_lowering(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)(
    _grid_sampler_backward
)
