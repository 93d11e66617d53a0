"""Average pooling to a given size, and its gradient: windows start and end at rounded fractions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir.ir import Value
from weft_loop_ir.lowering.concatenation import bounds_mask
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, scalar
from weft_loop_ir.lowering.pooling import MAX_UNROLLED_WINDOW
from weft_loop_ir.lowering.promotion import check_supported
from weft_loop_ir.lowering.reductions import map_values, over_dims
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import reshape
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten


@dataclass(frozen=True)
class _Dimension:
    """One pooled dim: window ``o`` is ``[o * source // target, ceil((o + 1) * source / target))``."""

    source: int
    target: int

    def start(self, ops: BodyRecorder, window: sympy.Expr) -> sympy.Expr:
        return ops.ranges.floor_div(window * self.source, sympy.Integer(self.target))

    def end(self, ops: BodyRecorder, window: sympy.Expr) -> sympy.Expr:
        reached = (window + 1) * self.source + self.target - 1
        return ops.ranges.floor_div(reached, sympy.Integer(self.target))

    def transposed(self) -> _Dimension:
        """The windows that contain an element, as windows on the windows."""
        return _Dimension(self.target, self.source)

    @property
    def longest(self) -> int:
        """The most elements of a window."""
        return max(
            -(-(o + 1) * self.source // self.target) - o * self.source // self.target
            for o in range(min(self.target, self.source * self.target))
        )


def _dimensions(
    source: tuple[sympy.Expr, ...], target: tuple[sympy.Expr, ...]
) -> tuple[_Dimension, _Dimension]:
    """The pooled dims, both static; raises :class:`NoLowering` else."""
    sizes = (*source[-2:], *target[-2:])
    if not all(isinstance(n, sympy.Integer) for n in sizes) or 0 in sizes:
        raise NoLowering("adaptive pooling of a symbolic size")
    return tuple(_Dimension(int(source[k]), int(target[k])) for k in (-2, -1))  # type: ignore[return-value]


def _tiles(source: tuple[sympy.Expr, ...], target: tuple[sympy.Expr, ...]) -> bool:
    """Whether the windows tile the input."""
    if target[-2:] == (1, 1):
        return 0 not in source[-2:]
    return all(
        isinstance(n, sympy.Integer) and isinstance(m, sympy.Integer) and m != 0 and n % m == 0
        for n, m in zip(source[-2:], target[-2:], strict=True)
    )


@register_lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(
    context: LoweringContext, tensor: TensorValue, output_size: Sequence[Any]
) -> TensorValue:
    """A reduction where windows tile the input, unrolled windows where they overlap."""
    if not tensor.dtype.is_floating_point:
        raise NoLowering("average pooling of integers")
    check_supported(tensor.dtype)
    compute = compute_dtype(tensor.dtype)
    target = context.meta_size()
    if not _tiles(tensor.size, target):
        return _overlapping(context, tensor, _dimensions(tensor.size, target), False)
    context.realize_computed(tensor)
    rows, columns = target[-2:]
    high, wide = tensor.size[-2] / rows, tensor.size[-1] / columns
    split = reshape(context, tensor, (*tensor.size[:-2], rows, high, columns, wide))
    rank = len(split.size)
    (total,) = over_dims(context, split, ["sum"], [rank - 3, rank - 1], False, compute)
    return map_values(
        context,
        [total],
        tensor.dtype,
        lambda ops, v: ops.truediv(v, scalar(ops, high * wide, compute)),
    )


@register_lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(
    context: LoweringContext, grad: TensorValue, tensor: TensorValue
) -> TensorValue:
    check_supported(grad.dtype)
    compute = compute_dtype(grad.dtype)
    if grad.size[-2:] != (1, 1):
        dims = _dimensions(tensor.size, grad.size)
        transposed = (dims[0].transposed(), dims[1].transposed())
        return _overlapping(context, grad, transposed, True)
    count = tensor.size[-2] * tensor.size[-1]

    def function(ops: BodyRecorder, index: Index) -> Value:
        value = ops.to_dtype(grad.load(ops, (*index[:-2], sympy.S.Zero, sympy.S.Zero)), compute)
        return ops.to_dtype(ops.truediv(value, scalar(ops, count, compute)), grad.dtype)

    return context.pointwise(tensor.size, grad.dtype, grad.device, function, [grad], 2)


def _overlapping(
    context: LoweringContext,
    tensor: TensorValue,
    dims: tuple[_Dimension, _Dimension],
    is_gradient: bool,
) -> TensorValue:
    """The sum over each window of the last two dims, unrolled, each term or the total averaged.

    Forward, the total is divided by the window's count.  In the gradient the roles of input and result are
    swapped, and each term is divided by the count of the window that it stands for.
    """
    longest = dims[0].longest, dims[1].longest
    if longest[0] * longest[1] > MAX_UNROLLED_WINDOW:
        raise NoLowering("a large window")
    compute = compute_dtype(tensor.dtype)
    context.realize_computed(tensor)

    def count(ops: BodyRecorder, windows: Index, along: Sequence[_Dimension]) -> Value:
        counts = [d.end(ops, w) - d.start(ops, w) for d, w in zip(along, windows, strict=True)]
        return ops.to_dtype(ops.index_expr(counts[0] * counts[1], torch.int64), compute)

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        starts = [d.start(ops, i) for d, i in zip(dims, index[-2:], strict=True)]
        lengths = [d.end(ops, i) - s for d, i, s in zip(dims, index[-2:], starts, strict=True)]
        for steps in itertools.product(range(longest[0]), range(longest[1])):
            place = tuple(s + k for s, k in zip(starts, steps, strict=True))
            mask = bounds_mask(
                ops, [(sympy.Integer(k), n) for k, n in zip(steps, lengths, strict=True)]
            )

            def term(nested: Any, place: Index = place) -> Value:
                value = nested.to_dtype(tensor.load(nested, (*index[:-2], *place)), compute)
                if is_gradient:
                    back = [d.transposed() for d in dims]
                    value = nested.truediv(value, count(nested, place, back))
                return value  # type: ignore[no-any-return]

            value = term(ops) if mask is None else ops.masked(mask, term, 0.0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        if not is_gradient:
            total = ops.truediv(total, count(ops, index[-2:], dims))
        return ops.to_dtype(total, tensor.dtype)

    instructions = 4 * longest[0] * longest[1]
    size = context.meta_size()
    return context.pointwise(
        size, tensor.dtype, tensor.device, function, [tensor], instructions, True
    )
