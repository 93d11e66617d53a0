"""Operands that are computed where they are loaded: casts, scales, activations, copies of broadcast batches.

An element is computed once for each tile that needs it.  That is done only where it neither moves more bytes
than a kernel of its own, which would store it, nor repeats what is costly to compute many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import sympy
from weft_loop_ir import (
    Buffer,
    BufferView,
    ExternCall,
    Kernel,
    ReplacedSteps,
    loop_values,
)
from weft_loop_ir.bodies import Combining, Indirect, Load, Reduction
from weft_loop_ir.contractions import (
    INNER,
    Contraction,
    Operand,
    Producer,
    contraction_of,
    row_factor,
)
from weft_loop_ir.ops import HALVES

from weft_codegen_triton.matmuls.tiles import SQUARE, static

COSTLY_BYTES = 4
"""What is moved in the time that a division, or a function, takes for an element."""
HIDDEN = 16
"""One byte more than so many is not noticed."""


def with_producers(
    contraction: Contraction, call: ExternCall, place: int, end: int, around: ReplacedSteps
) -> tuple[Contraction, tuple[Kernel, ...]]:
    """``contraction`` with those operands computed as they are loaded for which that pays, and their kernels.

    The kernels run at the position ``end``, so what they read must be as it was until then; ``place`` is that
    of ``call``.
    """
    kernels: list[Kernel] = []
    if contraction.is_convolution:
        return contraction, ()
    columns, rows = static(contraction.columns), static(contraction.rows)
    repeats = {"left": -(-columns // SQUARE.columns), "right": -(-rows // SQUARE.rows)}
    for side, count in repeats.items():
        operand: Operand = getattr(contraction, side)
        scaled = scaled_row(operand, contraction, end, around) if side == "left" else None
        if scaled is not None:
            contraction = replace(contraction, left=replace(operand, producer=scaled))
            continue
        kernel = _producer(operand.buffer, call, place, end, around)
        if kernel is None or kernel in kernels:
            continue
        if not pays(kernel, count, contraction, around.buffers):
            continue
        (store,) = kernel.stages[0].body.stores()
        size = around.buffers[operand.buffer].layout.size
        loops = loop_values(
            kernel.outer, store.index, operand.index, contraction.sizes, sympy.Mul(*size)
        )
        if loops is not None:
            changed = replace(operand, producer=Producer(kernel, loops))
            is_left = side == "left"
            contraction = replace(
                contraction,
                left=changed if is_left else contraction.left,
                right=contraction.right if is_left else changed,
            )
            kernels.append(kernel)
    return contraction, tuple(sorted(kernels, key=lambda k: around.written(k.writes[0])[0]))


def scaled_row(
    operand: Operand, contraction: Contraction, end: int, around: ReplacedSteps
) -> Producer | None:
    """The kernel that makes one row, scaled by a factor, for matmuls of ours alone; None if none does.

    It stays where it is, until nothing reads its result.
    """
    kernel = around.writer(operand.buffer, end)
    factor = None if kernel is None else row_factor(kernel, around.buffers)
    if kernel is None or factor is None or not multiplies_row(operand.buffer, around):
        return None
    (store,) = kernel.stages[-1].body.stores()
    loops = (*kernel.outer, *kernel.ranges[0])
    size = sympy.Mul(*around.buffers[operand.buffer].layout.size)
    values = loop_values(loops, store.index, operand.index, contraction.sizes, size)
    if values is None or any(loop.size != 1 for loop in kernel.outer):
        return None  # one factor for all that is added up
    return Producer(kernel, values, factor)


def multiplies_row(name: str, around: ReplacedSteps) -> bool:
    """Whether all that reads ``name`` are matmuls of one row, which it is, that are kernels of ours."""

    def is_ours(place: int) -> bool:
        call = around.step(place)
        if not isinstance(call, ExternCall):
            return False
        contraction = contraction_of(call, around.buffers)
        if contraction is None or not contraction.is_static or contraction.dtype not in HALVES:
            return False
        is_left = contraction.left.buffer == name != contraction.right.buffer
        return is_left and is_row_by_columns(contraction)

    return around.is_own(name) and all(map(is_ours, around.readers(name)))


def is_row_by_columns(contraction: Contraction) -> bool:
    """One row times a matrix each of whose columns lies side by side, as what it is computed of does."""
    if contraction.is_convolution or contraction.groups is not None or contraction.taps != 1:
        return False
    right = contraction.right
    is_row = contraction.batch == 1 and contraction.rows == 1
    if not is_row or sympy.expand(right.index).coeff(INNER) != 1:
        return False
    if right.producer is None:
        return True
    values = {loop.symbol: value for loop, value in right.producer.loops}
    loads = right.producer.kernel.stages[0].body.loads()
    steps = {sympy.expand(load.index.xreplace(values)).coeff(INNER) for load in loads}
    return steps <= {0, 1}


def _producer(
    name: str, call: ExternCall, place: int, end: int, around: ReplacedSteps
) -> Kernel | None:
    """The pointwise kernel that makes ``name`` for ``call`` alone, if it can do so as late as ``end``."""
    kernel = around.writer(name, end)
    uses = sum(isinstance(a, BufferView) and a.buffer == name for a in call.arguments)
    if kernel is None or around.readers(name) != [place] or uses != 1 or kernel.local_buffers:
        return None
    body = kernel.pointwise_body
    if body is None or len(body.stores()) != 1 or body.accumulates:
        return None
    return None if body.holds(Indirect, Reduction, Combining) else kernel


def pays(
    kernel: Kernel, repeats: int, contraction: Contraction, buffers: Mapping[str, Buffer]
) -> bool:
    """Whether computing each element ``repeats`` times beats storing it once and loading it as often.

    Counts bytes; elements that several iterations share, of a row of scales say, cost nothing.  What the
    contraction moves anyway hides a little more work.
    """
    body = kernel.stages[0].body
    (name,) = kernel.writes
    stored = buffers[name].layout.dtype.itemsize
    loops = {loop.symbol for loop in kernel.outer if loop.size != 1}
    is_costly = any(i.operation.is_costly for i in body.walk())
    made = COSTLY_BYTES * is_costly + sum(
        buffers[i.buffer].layout.dtype.itemsize
        for i in body.instructions
        if isinstance(i, Load) and loops <= i.index.free_symbols
    )
    elements = math.prod(static(loop.size) for loop in kernel.outer)
    extra = elements * (repeats * made - (made + stored + repeats * stored))
    batch, rows, columns, inner, taps = map(static, contraction.sizes.values())
    moved = batch * (rows * columns + taps * inner * (rows + columns)) * contraction.dtype.itemsize
    return HIDDEN * extra <= moved
