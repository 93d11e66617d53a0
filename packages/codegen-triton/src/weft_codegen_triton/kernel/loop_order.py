"""The order of the loops inside a reduction: the one along which memory is contiguous varies fastest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import sympy
from weft_loop_ir import Kernel, LoopVariable
from weft_loop_ir.expressions import unit_stride

from weft_codegen_triton.kernel.blocks import accesses, finds_positions


def with_contiguous_rows(kernel: Kernel) -> Kernel:
    """``kernel`` with the inner loops of each range in an order that reads memory side by side.

    An image that lies channels-last, reduced over some channels and all its points, is stored by points
    first and channels last, whatever order the operator names them in.
    """
    ranges = dict.fromkeys(s.inner for s in kernel.stages if len(s.inner) > 1)
    if not ranges or any(finds_positions(s.body) for s in kernel.stages):
        return kernel
    local = {b.name for b in kernel.local_buffers}
    orders = {inner: _ordered(inner, kernel, local) for inner in ranges}
    stages = tuple(replace(s, inner=orders.get(s.inner, s.inner)) for s in kernel.stages)
    return replace(kernel, stages=stages)


def _ordered(
    inner: tuple[LoopVariable, ...], kernel: Kernel, local: set[str]
) -> tuple[LoopVariable, ...]:
    votes: Counter[sympy.Symbol] = Counter()
    for stage in kernel.stages:
        if stage.inner == inner:
            for index in accesses(stage.body, local):
                loops = [v.symbol for v in inner if v.symbol in index.free_symbols]
                if len(loops) == len(inner):  # others, a weight say, are small
                    votes.update(s for s in loops if unit_stride(index, s))
    last = max(reversed(inner), key=lambda loop: votes[loop.symbol])
    return (*(loop for loop in inner if loop is not last), last)
