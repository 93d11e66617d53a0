"""The order of the loops inside a reduction: the one along which memory is contiguous varies fastest."""

from __future__ import annotations

from collections import Counter

import sympy
from weft_loop_ir import Kernel, LoopVariable
from weft_loop_ir.expressions import unit_stride

from weft_codegen_triton.kernel.blocks import accesses, finds_positions


def with_contiguous_rows(kernel: Kernel) -> Kernel:
    """``kernel`` with the inner loops of each range in an order that reads memory side by side.

    An image that lies channels-last, reduced over some channels and all its points, is stored by points
    first and channels last, whatever order the operator names them in.
    """
    ranges = [inner for inner in kernel.ranges if len(inner) > 1]
    if not ranges or any(map(finds_positions, kernel.bodies)):
        return kernel
    orders = {inner: _ordered(inner, kernel) for inner in ranges}
    return kernel.with_ranges(lambda inner: orders.get(inner, inner))


def _ordered(inner: tuple[LoopVariable, ...], kernel: Kernel) -> tuple[LoopVariable, ...]:
    votes: Counter[sympy.Symbol] = Counter()
    for stage in kernel.stages:
        if stage.inner == inner:
            for index in accesses(stage.body, kernel.local_names):
                loops = [v.symbol for v in inner if v.symbol in index.free_symbols]
                if len(loops) == len(inner):  # others, a weight say, are small
                    votes.update(s for s in loops if unit_stride(index, s))
    last = max(reversed(inner), key=lambda loop: votes[loop.symbol])
    return (*(loop for loop in inner if loop is not last), last)
