"""Upsampling by nearest neighbour in one to three dims, rounded as eager rounds it, and its gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import FloorDiv
from weft_loop_ir.lowering.concatenation import bounds_mask, load_where
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.interpolation import Axis, axes_of
from weft_loop_ir.lowering.pooling_windows import fold
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

MAX_EXACT_FACTOR = 40
"""Up to here the rounded product with a whole factor's inverse never falls short of a whole number."""


def _whole_factor(axis: Axis) -> int | None:
    factor = axis.whole_factor
    return factor if factor is not None and factor <= MAX_EXACT_FACTOR else None


def _neighbour(ops: BodyRecorder, axis: Axis, result: sympy.Expr, centred: bool) -> Value:
    """The element that a result is copied from.

    Eager computes its place in ``axis.dtype`` and rounds it to float32 before it takes the floor.
    """
    position = ops.number(result, axis.dtype)
    if centred:
        position = ops.add(position, 0.5)
    place = ops.mul(position, axis.scale(ops))
    whole = ops.floor(ops.to_dtype(place, torch.float32))
    last = ops.number(axis.last, torch.int64)
    return ops.minimum(ops.to_dtype(whole, torch.int64), last)


def _upsample(
    centred: bool,
    context: LoweringContext,
    tensor: TensorValue,
    output_size: Sequence[Any],
    *scales: float | None,
) -> TensorValue:
    size = context.meta_size()
    rank = len(size) - 2
    axes = axes_of(tensor.size[-rank:], size[-rank:], scales, False, _place_dtype(tensor, rank))

    def source(ops: BodyRecorder, axis: Axis, i: sympy.Expr) -> sympy.Expr:
        factor = _whole_factor(axis)
        if factor is not None:
            return ops.ranges.floor_div(i, sympy.Integer(factor))
        return ops.indirect_symbol(_neighbour(ops, axis, i, centred), axis.source, False)

    def function(ops: BodyRecorder, index: Index) -> Value:
        where = (source(ops, axis, i) for axis, i in zip(axes, index[-rank:], strict=True))
        return tensor.load(ops, (*index[:-rank], *where))

    return context.result(function, [tensor], 6, True)


def _place_dtype(tensor: TensorValue, rank: int) -> torch.dtype:
    """The dtype of places: eager's kernel for two dims computes in float32 for float64 tensors too."""
    return tensor.dtype if tensor.dtype == torch.float64 and rank != 2 else torch.float32


def _upsample_backward(
    centred: bool,
    context: LoweringContext,
    grad: TensorValue,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    *scales: float | None,
) -> TensorValue:
    """The sum of the results that each element was copied to: a block of them for whole factors."""
    size = context.meta_size()
    rank = len(size) - 2
    compute = compute_dtype(grad.dtype)
    axes = axes_of(size[-rank:], grad.size[-rank:], scales, False, torch.float32)
    factors = [_whole_factor(axis) for axis in axes]
    extents = [
        sympy.Integer(factor) if factor is not None else _most_copies(axis)
        for axis, factor in zip(axes, factors, strict=True)
    ]
    context.realize_computed(grad)

    def term(ops: BodyRecorder, index: Index, offsets: Index) -> Value:
        results: list[sympy.Expr] = []
        bounds: list[tuple[sympy.Expr, sympy.Expr]] = []
        mine: list[Value] = []
        for axis, factor, i, o in zip(axes, factors, index[-rank:], offsets, strict=True):
            if factor is not None:
                results.append(i * factor + o)
                continue
            first = ops.ranges.floor_div(sympy.expand(i * axis.target), axis.source) - 1
            results.append(first + o)
            bounds.append((first + o, axis.target))
            neighbour = _neighbour(ops, axis, first + o, centred)
            mine.append(ops.eq(neighbour, ops.index_expr(i, torch.int64)))
        mask = bounds_mask(ops, bounds)
        tests = mine if mask is None else [mask, *mine]
        mask = functools.reduce(ops.logical_and, tests) if tests else None
        return load_where(ops, mask, grad, (*index[:-rank], *results), compute, 0.0)

    total = fold(context, "sum", size, extents, term, [grad], compute)
    return cast(context, total, grad.dtype)


def _most_copies(axis: Axis) -> sympy.Expr:
    """How many results an element may be copied to, and the slack of rounding and of a given factor."""
    axis.is_exact()
    return FloorDiv(axis.target + axis.source - 1, axis.source) + 4


for (_name, _centred), _rank in itertools.product(
    (("upsample_nearest", False), ("_upsample_nearest_exact", True)), (1, 2, 3)
):
    for _suffix, _rule in (("", _upsample), ("_backward", _upsample_backward)):
        _operator = overload(f"{_name}{_rank}d{_suffix}")
        if _operator is not None:
            register_lowering(_operator)(functools.partial(_rule, _centred))
