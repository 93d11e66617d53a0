"""A contraction and the loops around it as ordinary loop nests: what is verified, evaluated and dumped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from weft_loop_ir import Buffer, Expansion, Kernel, LoopVariable, Value
from weft_loop_ir.loop_nests import LoopNests

from weft_codegen_triton.matmuls.contraction import (
    BATCH,
    COLUMN,
    INNER,
    ROW,
    TAP,
    Contraction,
    Groups,
    Operand,
)

if TYPE_CHECKING:
    from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel


def expanded_matmul(kernel: MatmulKernel, buffers: Mapping[str, Buffer]) -> Expansion:
    """Producers of operands, the sums, what is scaled and added to them, and the kernel's own loops."""
    contraction, nests = kernel.contraction, LoopNests(kernel.name, buffers)
    for operand in (contraction.left, contraction.right):
        if operand.producer is not None:
            nests.include(operand.producer.kernel, temporary=[operand.buffer])
    is_grouped = contraction.groups is not None
    of_result: list[sympy.Symbol] = [ROW, COLUMN] if is_grouped else [BATCH, ROW, COLUMN]
    summed: list[sympy.Symbol] = [BATCH, TAP, INNER] if is_grouped else [TAP, INNER]
    sizes = contraction.sizes
    outer = [LoopVariable(place, sizes[place]) for place in of_result]
    inner = [LoopVariable(place, sizes[place]) for place in summed]
    totals = nests.temporary(f"{kernel.sums}_total", [contraction.elements])

    def add_up(ops: Any) -> None:
        value = ops.mul(_element(ops, contraction.left), _element(ops, contraction.right))
        if contraction.groups is not None:
            zero = ops.constant(0.0, torch.float32)
            value = ops.where(_is_in_group(ops, contraction.groups), value, zero)
        total = ops.reduction("sum", torch.float32, value)
        ops.store(totals, contraction.position, total)

    nests.add(outer, (inner, add_up))
    nests.temporary(kernel.sums, [contraction.elements], contraction.dtype)
    nests.add(outer, ((), lambda ops: _finish(ops, contraction, totals, kernel.sums)))
    values = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
    loops = Kernel(**values)
    reads = tuple(dict.fromkeys(n for stage in kernel.stages for n in stage.body.reads))
    nests.include(replace(loops, name=f"{kernel.name}_loops", reads=reads))
    return nests.expansion()


def _element(ops: Any, operand: Operand) -> Value:
    """An element in float32; zero beyond the border of an image."""
    value = None
    for expression, extent in operand.inside:
        place = ops.index_expr(expression, torch.int64)
        is_inside = ops.logical_and(
            ops.ge(place, ops.constant(0, torch.int64)),
            ops.lt(place, ops.index_expr(extent, torch.int64)),
        )
        value = is_inside if value is None else ops.logical_and(value, is_inside)
    if value is None:
        return _wide(ops, ops.load(operand.buffer, operand.index))
    loaded = ops.masked(value, lambda inner: inner.load(operand.buffer, operand.index), 0)
    return _wide(ops, loaded)


def _wide(ops: Any, value: Value) -> Value:
    wide: Value = ops.to_dtype(value, torch.float32)
    return wide


def _is_in_group(ops: Any, groups: Groups) -> Value:
    """Whether the row is one of the group that ``BATCH`` tells: from the end before it to its own."""

    def end(before: sympy.Expr) -> Any:
        index = groups.offset + groups.step * before
        return lambda inner: inner.to_dtype(inner.load(groups.buffer, index), torch.int64)

    row = ops.index_expr(ROW, torch.int64)
    has_one_before = ops.gt(ops.index_expr(BATCH, torch.int64), ops.constant(0, torch.int64))
    first = ops.masked(has_one_before, end(BATCH - 1), 0)
    inside: Value = ops.logical_and(ops.ge(row, first), ops.lt(row, end(BATCH)(ops)))
    return inside


def _finish(ops: Any, contraction: Contraction, totals: str, sums: str) -> None:
    """Scale the sums, add to them, and round the result as the library does."""

    def times(value: Value, scale: float) -> Value:
        product: Value = ops.mul(value, ops.constant(scale, torch.float32))
        return value if scale == 1.0 else product

    value = times(ops.load(totals, contraction.position), contraction.scale)
    for bias in contraction.biases:
        value = ops.add(value, times(_wide(ops, ops.load(bias.buffer, bias.index)), bias.scale))
    ops.store(sums, contraction.position, ops.to_dtype(value, contraction.dtype))
