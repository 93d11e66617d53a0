"""A contraction as ordinary loop nests: what is verified, evaluated and dumped."""

from __future__ import annotations

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.contractions.contraction import (
    BATCH,
    COLUMN,
    ROW,
    Contraction,
    Groups,
    Operand,
)
from weft_loop_ir.ir import LoopVariable
from weft_loop_ir.loop_nests import LoopNests
from weft_loop_ir.recording import BodyRecorder


def add_contraction(nests: LoopNests, contraction: Contraction, result: str) -> None:
    """Append what computes ``result``: the sums, scaled, with biases, rounded as libraries do."""
    groups, sizes = contraction.groups, contraction.sizes
    of_result = [BATCH, ROW, COLUMN] if groups is None else [ROW, COLUMN]

    def product(ops: BodyRecorder) -> Value:
        value = ops.mul(_element(ops, contraction.left), _element(ops, contraction.right))
        return value if groups is None else ops.where(_is_in_group(ops, groups), value, 0.0)

    def finish(ops: BodyRecorder, total: Value) -> Value:
        value = _times(ops, total, contraction.scale)
        for bias in contraction.biases:
            added = ops.to_dtype(ops.load(bias.buffer, bias.index), torch.float32)
            value = ops.add(value, _times(ops, added, bias.scale))
        return value

    nests.contract(
        [LoopVariable(place, sizes[place]) for place in of_result],
        [LoopVariable(place, sizes[place]) for place in sizes if place not in of_result],
        product,
        (result, contraction.position),
        finish,
    )


def _times(ops: BodyRecorder, value: Value, scale: float) -> Value:
    return value if scale == 1.0 else ops.mul(value, scale)


def _element(ops: BodyRecorder, operand: Operand) -> Value:
    """An element in float32; zero beyond the border of an image."""
    inside = None
    for expression, extent in operand.inside:
        place = ops.index_expr(expression, torch.int64)
        is_inside = ops.logical_and(
            ops.ge(place, 0), ops.lt(place, ops.index_expr(extent, torch.int64))
        )
        inside = is_inside if inside is None else ops.logical_and(inside, is_inside)
    if inside is None:
        loaded = ops.load(operand.buffer, operand.index)
    else:
        loaded = ops.masked(inside, lambda inner: inner.load(operand.buffer, operand.index), 0)
    return ops.to_dtype(loaded, torch.float32)


def _is_in_group(ops: BodyRecorder, groups: Groups) -> Value:
    """Whether the row is one of the group that ``BATCH`` tells: from the end before it to its own."""

    def end(inner: BodyRecorder, before: sympy.Expr) -> Value:
        index = groups.offset + groups.step * before
        return inner.to_dtype(inner.load(groups.buffer, index), torch.int64)

    row = ops.index_expr(ROW, torch.int64)
    has_one_before = ops.gt(ops.index_expr(BATCH, torch.int64), 0)
    first = ops.masked(has_one_before, lambda inner: end(inner, BATCH - 1), 0)
    return ops.logical_and(ops.ge(row, first), ops.lt(row, end(ops, BATCH)))
