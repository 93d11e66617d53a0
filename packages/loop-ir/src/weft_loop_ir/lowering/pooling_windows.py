"""Windows on the last dims of a tensor: where they lie, and folding their elements into one value."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.registry import overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, InnerFunction, TensorValue
from weft_loop_ir.recording import BodyRecorder

MAX_UNROLLED_WINDOW = 49
"""Elements of a window that are unrolled in one body; a larger window is a reduction."""
MAX_UNROLLED_SYMBOLIC = 9
"""The same where sizes are symbols: each element's place is an expression of its own, slow to simplify."""

Term = Callable[[BodyRecorder, Index, Index], Value]
"""``term(ops, index, offsets)``: what the element at ``offsets`` in the window of ``index`` gives."""

_COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}


def is_unrolled(
    size: Sequence[sympy.Expr], extents: Sequence[sympy.Expr], limit: int = MAX_UNROLLED_WINDOW
) -> bool:
    """Whether windows of these extents, over the last dims of ``size``, are unrolled."""
    if not all(isinstance(n, sympy.Integer) for n in size[-len(extents) :]):
        limit = min(limit, MAX_UNROLLED_SYMBOLIC)
    known = [int(n) for n in extents if isinstance(n, sympy.Integer)]
    return len(known) == len(extents) and 0 < math.prod(known) <= limit


def fold(
    context: LoweringContext,
    kind: str,
    size: tuple[sympy.Expr, ...],
    extents: Sequence[sympy.Expr],
    term: Term,
    inputs: Sequence[TensorValue],
    dtype: torch.dtype,
    *,
    limit: int = MAX_UNROLLED_WINDOW,
    instructions: int = 4,
) -> TensorValue:
    """``kind`` ("sum", "max" or "min") over the terms of each window, in row-major order.

    A window of at most ``limit`` elements is unrolled in the body, which others may inline; a larger one,
    or one of symbolic extents, is a loop.  The result has ``size`` and ``dtype``, the terms' own.
    """
    device = inputs[0].device
    if not is_unrolled(size, extents, limit):
        for tensor in inputs:
            context.realize_computed(tensor)
        (result,) = context.reduce([kind], size, tuple(extents), term, inputs, dtype, device)
        return result
    places = list(itertools.product(*(range(int(n)) for n in extents)))

    def function(ops: BodyRecorder, index: Index) -> Value:
        total: Value | None = None
        for offsets in places:
            value = term(ops, index, tuple(map(sympy.Integer, offsets)))
            total = value if total is None else getattr(ops, _COMBINE[kind])(total, value)
        assert total is not None
        return total

    cost = instructions * len(places)
    return context.pointwise(size, dtype, device, function, inputs, cost, True)


def table(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    dtype: torch.dtype,
    device: torch.device,
    function: InnerFunction,
) -> TensorValue:
    """What depends on few indices only, computed once for all elements: a small buffer."""
    return context.realize(context.pointwise(size, dtype, device, function))


def expanded(value: Any, rank: int, default: Any = None) -> tuple[int, ...]:
    """A pooling argument for each of ``rank`` dims; an empty one is ``default``."""
    if default is not None and not isinstance(value, int) and not value:
        return expanded(default, rank)
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


class Windows:
    """Windows on the last ``rank`` dims, which are numbered from 0, of a tensor of ``size``."""

    def __init__(
        self,
        rank: int,
        size: tuple[sympy.Expr, ...],
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any = 1,
    ) -> None:
        self.rank = rank
        self.kernel = expanded(kernel, rank)
        self.stride = expanded(stride, rank, self.kernel)
        self.padding = expanded(padding, rank)
        self.dilation = expanded(dilation, rank)
        self.extent = size[-rank:]

    @property
    def extents(self) -> tuple[sympy.Expr, ...]:
        """How many elements a window has along each dim."""
        return tuple(map(sympy.Integer, self.kernel))

    @property
    def span(self) -> tuple[int, ...]:
        """How many positions a window reaches over along each dim, gaps counted."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def start(self, index: Index) -> Index:
        """The position of the first element of the window of a result's index; padding is negative."""
        window = index[-self.rank :]
        return tuple(i * s - p for i, s, p in zip(window, self.stride, self.padding, strict=True))

    def place(
        self, ops: BodyRecorder, index: Index, offsets: Index
    ) -> tuple[Index, list[tuple[sympy.Expr, sympy.Expr]]]:
        """The position at ``offsets`` in the window of ``index``, and what says whether the input has it."""
        starts = zip(self.start(index), offsets, self.dilation, strict=True)
        position = tuple(start + offset * dilation for start, offset, dilation in starts)
        return position, list(zip(position, self.extent, strict=True))

    def first(self, ops: BodyRecorder, index: Index) -> Index:
        """The position of the first element of a window that lies in the input."""
        result = []
        for start, dilation in zip(self.start(index), self.dilation, strict=True):
            low, _ = ops.ranges.bounds(start)
            if low is None or low < 0:
                start = sympy.Max(start, ops.ranges.modulo(start, sympy.Integer(dilation)))
            result.append(start)
        return tuple(result)

    def divisor(
        self,
        compute: torch.dtype,
        ceil_mode: bool,
        count_include_pad: bool = True,
        override: int | None = None,
    ) -> Callable[[BodyRecorder, Index], Value]:
        """What an average divides by, as a function of the window's index."""
        plain = not ceil_mode and (not any(self.padding) or count_include_pad)

        def function(ops: BodyRecorder, index: Index) -> Value:
            if override is not None:
                return ops.number(override, compute)
            if plain:
                return ops.number(math.prod(self.kernel), compute)
            count: sympy.Expr = sympy.S.One
            for start, kernel, pad, extent in zip(
                self.start(index), self.kernel, self.padding, self.extent, strict=True
            ):
                end = sympy.Min(start + kernel, extent + pad)
                if not count_include_pad:
                    start, end = sympy.Max(start, 0), sympy.Min(end, extent)
                count = count * (end - start)
            return ops.to_dtype(ops.index_expr(count, torch.int64), compute)

        return function


def register_pooling(name: str, rule: Callable[..., Any]) -> None:
    """Make ``rule(rank, context, ...)`` that of the operators over two and three dims."""
    for rank in (2, 3):
        operator = overload(name.format(rank))
        assert operator is not None
        register_lowering(operator)(functools.partial(rule, rank))


def flat_position(position: Index, extent: tuple[sympy.Expr, ...]) -> sympy.Expr:
    """The row-major number of a position in a plane of size ``extent``."""
    number: sympy.Expr = sympy.S.Zero
    for p, n in zip(position, extent, strict=True):
        number = number * n + p
    return number
