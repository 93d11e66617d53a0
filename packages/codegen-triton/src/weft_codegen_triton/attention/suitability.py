"""Which attentions are kernels of our own without timing: where tensor cores round nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy
import torch
from weft_loop_ir import (
    AttentionGradientKernel,
    AttentionKernel,
    Buffer,
    DifferentiatedAttention,
    Kernel,
    MatrixOperand,
    Schedule,
)

from weft_codegen_triton.attention.few_queries import parts_of_keys
from weft_codegen_triton.attention.functions import MAX_KEYS, MAX_WIDTH, MIN_SIDE
from weft_codegen_triton.attention.print_gradients import (
    COLUMN_TILES,
    SUM_TILES,
    programs_of_columns,
)
from weft_codegen_triton.gpu import GRAPH_LAUNCH, LOAD_WAIT, Gpu


def suits_template(attention: AttentionKernel, schedule: Schedule) -> bool:
    """Whether tensor cores multiply exactly, and find enough to do."""
    operands = (attention.query, attention.key, attention.value)
    dtypes = {schedule.buffers[operand.buffer].layout.dtype for operand in operands}
    _, queries, width = attention.query.size
    in_half = all(dtype.itemsize == 2 for dtype in dtypes)
    return in_half and _fills_blocks(queries, attention.value.size[1], width)


def suits_gradients(attention: DifferentiatedAttention) -> bool:
    """The same for attention whose gradients are kernels too."""
    query, key = (node.meta["val"] for node in attention.matmul.args[-2:])  # type: ignore[union-attr]
    value = attention.result.args[1].meta["val"]  # type: ignore[union-attr]
    widths = (query.shape[-1], value.shape[-1])
    in_half = all(t.dtype in (torch.float16, torch.bfloat16) for t in (query, key, value))
    are_known = all(isinstance(n, int) and n <= MAX_WIDTH for n in widths)
    extents = map(sympy.sympify, (query.shape[-2], key.shape[-1], query.shape[-1]))
    return in_half and are_known and _fills_blocks(*extents)


def _fills_blocks(queries: sympy.Expr, keys: sympy.Expr, width: sympy.Expr) -> bool:
    """Whether tensor cores find enough to do; with few keys the blocks of a library would be emptier."""
    is_small = keys.is_Integer and int(keys) <= MAX_KEYS
    return is_small or all(not n.is_Integer or n >= MIN_SIDE for n in (queries, keys, width))


MAX_SUMMED = 64
"""Matrices that few programs may add up one after another."""


def has_enough_programs(kernel: AttentionGradientKernel, gpu: Gpu) -> bool:
    """Whether programs that each go through a group of matrices leave no multiprocessor idle."""
    batches, count = kernel.score_rows.batches, kernel.group.count
    is_sum = kernel.total is not None
    if count == 1 or not batches.is_Integer or (is_sum and count <= MAX_SUMMED):
        return True
    extent, tile, programs = kernel.key_loop.size, COLUMN_TILES[0].keys, batches / count
    if is_sum:
        extent, tile = kernel.score_rows.queries, SUM_TILES[0].queries
        programs *= programs_of_columns(kernel, SUM_TILES[0])
    if not extent.is_Integer:
        return True
    return int(programs) * -(-int(extent) // tile) >= gpu.multiprocessors


def computes_operand(
    attention: AttentionKernel,
    operand: MatrixOperand,
    kernel: Kernel,
    saves_launch: bool,
    buffers: Mapping[str, Buffer],
    gpu: Gpu,
) -> bool:
    """Whether ``kernel``'s elements are computed sooner where ``operand`` is loaded than kept in memory.

    A query is loaded by each part of the keys, which waits for it.  Where programs have all keys nothing is
    computed: that took longer or no less, and kernels for 128 elements of a query had not the memory.  Keys
    and values are loaded as they are: what computes them was not measured.
    """
    parts, loops = parts_of_keys(attention, gpu), [v for v in kernel.outer if v.size != 1]
    if parts == 1 or operand is not attention.query:
        return False
    elements, body = math.prod(int(loop.size) for loop in loops), kernel.stages[0].body
    told = {loop.symbol for loop in loops}
    loads = [i.buffer for i in body.loads() if told <= i.index.free_symbols]
    read = sum(buffers[name].layout.dtype.itemsize for name in loads)
    kept = buffers[operand.buffer].layout.dtype.itemsize
    work = sum(i.operation.cost for i in body.walk())
    computing = parts * elements * (gpu.moving(read) + work / gpu.float_rate)
    saved = gpu.moving(elements * (read + kept + parts * kept))
    return LOAD_WAIT + computing <= saved + (GRAPH_LAUNCH if saves_launch else 0)
