"""Operands that are computed where they are loaded: casts, scales, activations, copies of broadcast batches.

An element is computed once for each tile that needs it.  That is done only where it neither moves more bytes
than a kernel of its own, which would store it, nor repeats what is costly to compute many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
from weft_loop_ir import (
    Buffer,
    BufferView,
    ExternCall,
    Kernel,
    LoopVariable,
    ReplacedSteps,
    digits_of,
    ranges_for,
)
from weft_loop_ir.bodies import Combining, Indirect, Load, Reduction
from weft_loop_ir.contractions import Contraction, Loops, Operand, Producer

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


def loop_values(
    loops: Sequence[LoopVariable],
    index: sympy.Expr,
    position: sympy.Expr,
    sizes: Mapping[sympy.Symbol, sympy.Expr],
    count: sympy.Expr,
) -> Loops | None:
    """Where ``loops`` are when ``index``, which they tell, is ``position``, over symbols of ``sizes``.

    None unless the loops are the digits of an index into ``count`` elements, so that each is told once.
    """
    still = {loop.symbol: sympy.S.Zero for loop in loops if loop.size == 1}
    moving = {loop.symbol: loop.size for loop in loops if loop.size != 1}
    digits = digits_of(index.xreplace(still), moving)
    if digits is None or sympy.expand(sympy.prod(moving.values()) - count) != 0:
        return None
    ranges = ranges_for(tuple(sizes.items()))
    values = dict.fromkeys(loops, sympy.S.Zero)
    for digit in digits:
        place = ranges.floor_div(position, digit.step)
        is_last = digit is digits[-1]
        values[digit.loop] = place if is_last else ranges.modulo(place, digit.loop.size)
    return tuple(values.items())
