"""Gradients of linear and bilinear interpolation by whole factors, gathered as those of pooling are.

An element at ``i`` has a share of each result ``o`` whose place ``(o + 0.5) / factor - 0.5``, kept inside the
input, is less than 1 away: as much as is missing to 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pooling_windows import MAX_UNROLLED_WINDOW
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


def _factor(source: sympy.Expr, target: sympy.Expr, scale: float | None) -> int:
    """``target / source``; raises :class:`NoLowering` where that is not whole, or ``scale`` is another."""
    ratio = target / source if source != 0 else sympy.S.NaN
    if not isinstance(ratio, sympy.Integer) or scale not in (None, float(ratio)):
        raise NoLowering("interpolation by a fraction")
    return int(ratio)


def _reach(factor: int) -> range:
    """The results that an element has a share of, counted from ``factor`` times its index."""
    return range(-((factor + 2) // 2) + 1, (3 * factor) // 2)


def _shares(
    ops: BodyRecorder, index: sympy.Expr, extent: sympy.Expr, factor: int, dtype: torch.dtype
) -> list[tuple[sympy.Expr, Value]]:
    """The results along one dim, and how much of each the element at ``index`` gets back."""
    here = ops.to_dtype(ops.index_expr(index, torch.int64), dtype)
    last = ops.to_dtype(ops.index_expr(extent - 1, torch.int64), dtype)
    zero, half, one = (ops.constant(number, dtype) for number in (0.0, 0.5, 1.0))
    shares = []
    for step in _reach(factor):
        result = index * factor + step
        middle = ops.add(ops.to_dtype(ops.index_expr(result, torch.int64), dtype), half)
        place = ops.sub(ops.mul(middle, ops.constant(1.0 / factor, dtype)), half)
        place = ops.minimum(ops.maximum(place, zero), last)
        share = ops.maximum(ops.sub(one, ops.abs(ops.sub(place, here))), zero)
        shares.append((result, share))
    return shares


def _interpolation_backward(
    context: LoweringContext,
    grad: TensorValue,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> TensorValue:
    check_supported(grad.dtype)
    if align_corners:
        raise NoLowering("aligned corners: each element has another number of results")
    rank = len(output_size)
    size = context.meta_size()
    extents = size[-rank:]
    given = (*scales, *[None] * (rank - len(scales)))
    factors = [_factor(*sizes) for sizes in zip(extents, grad.size[-rank:], given, strict=True)]
    count = int(sympy.prod([len(_reach(factor)) for factor in factors]))
    if count > MAX_UNROLLED_WINDOW:
        raise NoLowering("a large factor")
    compute = compute_dtype(grad.dtype)
    context.realize_computed(grad)

    def function(ops: BodyRecorder, index: Index) -> Value:
        along = [
            _shares(ops, i, extent, factor, compute)
            for i, extent, factor in zip(index[-rank:], extents, factors, strict=True)
        ]
        total = ops.constant(0.0, compute)
        for results in itertools.product(*along):
            where = tuple(place for place, _ in results)
            mask = bounds_mask(ops, list(zip(where, grad.size[-rank:], strict=True)))

            def value(nested: Any, where: Index = where) -> Value:
                loaded = grad.load(nested, (*index[:-rank], *where))
                return nested.to_dtype(loaded, compute)  # type: ignore[no-any-return]

            part = value(ops) if mask is None else ops.masked(mask, value, 0.0)
            for _, share in results:
                part = ops.mul(part, share)
            total = ops.add(total, part)
        return ops.to_dtype(total, grad.dtype)

    return context.pointwise(size, grad.dtype, grad.device, function, [grad], 8 * count, True)


register_lowering(aten.upsample_linear1d_backward.default)(_interpolation_backward)
register_lowering(aten.upsample_bilinear2d_backward.default)(_interpolation_backward)
