"""Scatters along a dim: what meets at a place takes turns, or is combined by atomic updates.

Extremes are the same in any order; sums and products of floats are left to torch where an order is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import (
    LoweringContext,
    compute_dtype,
    constant_tensor,
    storage_stride,
)
from weft_loop_ir.lowering.indexing import (
    along,
    apart_from,
    check_atomic,
    check_index,
    copy_to_write,
    store,
    with_a_dim,
)
from weft_loop_ir.lowering.pooling import lowest_value
from weft_loop_ir.lowering.promotion import map_values
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
Number = int | float


@dataclass(frozen=True)
class ScatterReduction:
    """One way to combine: the mode of the stores, and what combining begins with without the old value."""

    mode: str
    neutral: Callable[[torch.dtype], Number]
    any_order: bool = False


def _greatest(dtype: torch.dtype) -> Number:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


_SUM = ScatterReduction("atomic_add", lambda dtype: 0)
_PRODUCT = ScatterReduction("atomic_mul", lambda dtype: 1)
REDUCTIONS = {
    "sum": _SUM,
    "add": _SUM,
    "mean": _SUM,
    "prod": _PRODUCT,
    "multiply": _PRODUCT,
    "amax": ScatterReduction("atomic_max", lowest_value, any_order=True),
    "amin": ScatterReduction("atomic_min", _greatest, any_order=True),
}


@dataclass(frozen=True)
class Scatter:
    """What goes where: ``value(ops, index)`` to ``place(ops, index)``, for each index in ``size``."""

    size: tuple[sympy.Expr, ...]
    place: Callable[[BodyRecorder, Index], Index]
    value: Callable[[BodyRecorder, Index], Value]


def _scattered(
    context: LoweringContext,
    tensor: TensorValue,
    scatter: Scatter,
    reduce: str | None,
    include_self: bool,
) -> TensorValue:
    """A copy of ``tensor`` with what ``scatter`` stores, or combines with it by ``reduce``."""
    dtype = tensor.dtype
    reduction = None if reduce is None else REDUCTIONS[reduce]
    mode = None if reduction is None else reduction.mode
    if reduction is not None:
        check_atomic(context, dtype, any_order=reduction.any_order)
        if mode != "atomic_add" and tensor.device.type != "cpu":
            raise NoLowering(f"{mode} on {tensor.device.type}")
    target = copy_to_write(context, tensor)
    if reduction is not None and not include_self:
        _fill(context, target, scatter, reduction.neutral(dtype))

    def program(ops: BodyRecorder, index: Index) -> None:
        place = scatter.place(ops, index)
        store(ops, target, place, ops.to_dtype(scatter.value(ops, index), dtype), mode)

    context.program_node(scatter.size, program, context.origin())
    return _mean(context, target, scatter, include_self) if reduce == "mean" else target


def _fill(context: LoweringContext, target: TensorValue, scatter: Scatter, number: Number) -> None:
    def program(ops: BodyRecorder, index: Index) -> None:
        value = ops.number(number, target.dtype)
        store(ops, target, scatter.place(ops, index), value, None)

    context.program_node(scatter.size, program, context.origin())


def _mean(
    context: LoweringContext, total: TensorValue, scatter: Scatter, include_self: bool
) -> TensorValue:
    """``total`` by how many values met at each place; whole numbers are rounded down."""
    dtype = total.dtype
    first = constant_tensor(context, total.size, int(include_self), torch.int64, total.device)
    counts = context.realize(context.copy_of(first, storage_stride(context.meta)))

    def program(ops: BodyRecorder, index: Index) -> None:
        one = ops.constant(1, torch.int64)
        store(ops, counts, scatter.place(ops, index), one, "atomic_add")

    context.program_node(scatter.size, program, context.origin())

    def divided(ops: Any, value: Value, count: Value) -> Value:
        count = ops.to_dtype(ops.maximum(count, 1), dtype)
        operation = ops.truediv if dtype.is_floating_point else ops.floordiv
        return operation(value, count)  # type: ignore[no-any-return]

    return map_values(context, [total, counts], dtype, divided)


@register_lowering(
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two,
    aten.scatter.reduce, aten.scatter.value_reduce,
)  # fmt: skip
def scatter(
    context: LoweringContext,
    tensor: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    reduce: str | None = None,
    *,
    include_self: bool = True,
) -> TensorValue:
    if context.operator == aten.scatter_add.default:
        reduce = "sum"
    check_index(indices)
    if not tensor.size or len(indices.size) != len(tensor.size):
        raise NoLowering("scatter to a tensor without dims, or to no places of other dims")
    if isinstance(source, complex):
        raise NoLowering("a complex value")
    if isinstance(source, TensorValue):
        source = apart_from(context, source, tensor)

    def value(ops: BodyRecorder, index: Index) -> Value:
        if isinstance(source, TensorValue):
            return source.load(ops, index)
        return ops.number(source, compute_dtype(tensor.dtype))

    scatter = Scatter(indices.size, along(tensor, dim, indices), value)
    return _scattered(context, tensor, scatter, reduce, include_self)


@register_lowering(aten.index_reduce.default, aten.index_add.default)
def index_reduce(
    context: LoweringContext,
    tensor: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str = "sum",
    *,
    include_self: bool = True,
    alpha: Any = 1,
) -> TensorValue:
    check_index(indices)
    if alpha != 1 or source.dtype != tensor.dtype:
        raise NoLowering("writes at indices in this form")
    if not tensor.size:
        raise NoLowering("writes at indices of a tensor without dims")
    source = apart_from(context, source, tensor)
    place = along(tensor, dim, with_a_dim(indices), is_row=True)
    scatter = Scatter(source.size, place, source.load)
    return _scattered(context, tensor, scatter, reduce, include_self)
