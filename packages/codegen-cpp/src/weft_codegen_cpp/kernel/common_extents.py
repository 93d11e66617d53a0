"""Kernels that differ in their number of elements alone share one function that is told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
from weft_loop_ir import Kernel, LoopVariable

from weft_codegen_cpp.kernel.expressions import static_int

EXTENT = sympy.Symbol("extent", integer=True, positive=True)
"""The number of elements, where it is handed to the function."""


def with_common_extents(
    kernels: Sequence[Kernel],
) -> list[tuple[Kernel, Mapping[sympy.Symbol, int]]]:
    """``kernels``; those with one loop are over :data:`EXTENT`, with its value, if their lengths differ."""
    lengths = [_length(kernel) for kernel in kernels]
    if len({length for length in lengths if length is not None}) < 2:
        return [(kernel, {}) for kernel in kernels]
    return [
        (kernel, {}) if length is None else (_over_extent(kernel), {EXTENT: length})
        for kernel, length in zip(kernels, lengths, strict=True)
    ]


def _length(kernel: Kernel) -> int | None:
    """The elements of a pointwise kernel with one loop over one or more, as far as they are known."""
    if len(kernel.outer) != 1 or kernel.pointwise_body is None:
        return None
    return static_int(kernel.outer[0].size) or None


def _over_extent(kernel: Kernel) -> Kernel:
    return replace(kernel, outer=(LoopVariable(kernel.outer[0].symbol, EXTENT),))
