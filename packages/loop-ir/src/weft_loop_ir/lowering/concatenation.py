"""Joining, repeating, padding and overwriting parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import dot, product, to_expression
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, storage_stride
from weft_loop_ir.lowering.registry import register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import (
    Window,
    diagonal_of,
    insert_dim,
    normalize_dim,
    reshape,
    selected,
    sliced,
)
from weft_loop_ir.recording import BodyRecorder, number_of
from weft_loop_ir.rewriting.fakes import is_view

aten = torch.ops.aten


@register_lowering(aten.cat.default)
def cat(context: LoweringContext, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    # eager skips those without elements whatever the others' rank, but for their dtypes
    parts = [t for t in tensors if t.size != (0,)] or tensors
    return join(context, parts, normalize_dim(dim, len(parts[0].size)))


@register_lowering(aten.stack.default)
def stack(context: LoweringContext, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    d = normalize_dim(dim, len(tensors[0].size) + 1)
    return join(context, [insert_dim(t, d) for t in tensors], d)


def join(context: LoweringContext, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    """The parts one after the other along ``dim``.

    A few parts that only pointwise operators read are selected by index; else each is copied to its place.
    """
    few = len(parts) <= context.options.max_lazy_concatenation
    if few and _only_pointwise_read(context.call, context.options.selects_through_views):
        return _selected(context, parts, dim)
    return _copied(context, parts, dim)


def _only_pointwise_read(node: torch.fx.Node, through_views: bool) -> bool:
    """Whether only pointwise operators read ``node``; one of them may read it through views, if so said."""
    while through_views and len(node.users) == 1:
        (user,) = node.users
        if not is_view(user):
            break
        node = user
    return bool(node.users) and all(
        isinstance(user.target, OpOverload)
        and (torch.Tag.pointwise in user.target.tags or user.target is aten._to_copy.default)
        for user in node.users
    )


def _copied(context: LoweringContext, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    dtype = context.meta_dtype()
    size = context.meta_size()
    stride = storage_stride(context.meta)
    name = context.new_buffer(size, stride, dtype, context.meta_device())
    start: sympy.Expr = sympy.S.Zero
    for part in parts:

        def function(ops: BodyRecorder, index: Index, part: TensorValue = part) -> Value:
            return ops.to_dtype(part.load(ops, index), dtype)

        origins = context.origin()
        if not part.storage.is_realized:
            origins |= part.storage.origins
        context.write_node(name, part.size, stride, function, origins, start * stride[dim])
        start = start + part.size[dim]
    return context.buffer_tensor(name)


def _selected(context: LoweringContext, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    dtype = context.meta_dtype()
    compute = compute_dtype(dtype)
    starts: list[sympy.Expr] = [sympy.S.Zero]
    for part in parts:
        starts.append(starts[-1] + part.size[dim])

    def function(ops: BodyRecorder, index: Index) -> Value:
        position = ops.index_expr(index[dim], torch.int64)
        result: Value | None = None
        for k in reversed(range(len(parts))):
            after = ops.ge(position, starts[k])
            before = ops.lt(position, starts[k + 1])
            inside = (
                before
                if k == 0
                else (after if k == len(parts) - 1 else ops.logical_and(after, before))
            )
            is_single = parts[k].size[dim] == 1  # there is one place to read, for every position
            place = sympy.S.Zero if is_single else index[dim] - starts[k]
            shifted = index[:dim] + (place,) + index[dim + 1 :]
            mask = None if is_single else inside
            value = load_where(ops, mask, parts[k], shifted, compute, number_of(0, compute))
            result = value if result is None else ops.where(before, value, result)
        assert result is not None
        return ops.to_dtype(result, dtype)

    return context.result(function, parts, 4 * len(parts))


def reindexed(
    context: LoweringContext, tensor: TensorValue, size: tuple[sympy.Expr, ...], index_map: Any
) -> TensorValue:
    """A lazy copy whose element at an index is ``tensor``'s at ``index_map(ops, index)``."""

    def function(ops: BodyRecorder, index: Index) -> Value:
        return tensor.load(ops, index_map(ops, index))

    return context.pointwise(size, tensor.dtype, tensor.device, function, [tensor])


@register_lowering(aten.repeat.default)
def repeat(context: LoweringContext, tensor: TensorValue, repeats: Sequence[Any]) -> TensorValue:
    skip = len(repeats) - len(tensor.size)

    def index_map(ops: BodyRecorder, index: Index) -> Index:
        return tuple(
            sympy.S.Zero if n == 1 else (i if r == 1 else ops.ranges.modulo(i, n))
            for i, n, r in zip(index[skip:], tensor.size, repeats[skip:], strict=True)
        )

    return reindexed(context, tensor, context.meta_size(), index_map)


@register_lowering(aten.flip.default)
def flip(context: LoweringContext, tensor: TensorValue, dims: Sequence[int]) -> TensorValue:
    chosen = {normalize_dim(d, len(tensor.size)) for d in dims}

    def index_map(ops: BodyRecorder, index: Index) -> Index:
        return tuple(tensor.size[d] - 1 - i if d in chosen else i for d, i in enumerate(index))

    return reindexed(context, tensor, tensor.size, index_map)


@register_lowering(aten.roll.default)
def roll(
    context: LoweringContext, tensor: TensorValue, shifts: Any, dims: Sequence[int] = ()
) -> TensorValue:
    amounts = [shifts] if isinstance(shifts, int | sympy.Expr) else list(shifts)
    if not dims:
        flat = reshape(tensor, (product(tensor.size),))
        rolled = _rolled(context, flat, {0: amounts[0]})
        return reshape(rolled, tensor.size)
    total: dict[int, Any] = {}
    for amount, dim in zip(amounts, dims, strict=True):
        d = normalize_dim(dim, len(tensor.size))
        total[d] = total.get(d, 0) + amount
    return _rolled(context, tensor, total)


def _rolled(context: LoweringContext, tensor: TensorValue, shifts: dict[int, Any]) -> TensorValue:
    def index_map(ops: BodyRecorder, index: Index) -> Index:
        return tuple(
            ops.ranges.modulo(i - ops.ranges.modulo(to_expression(shifts[d]), n) + n, n)
            if d in shifts and n != 0
            else i
            for (d, i), n in zip(enumerate(index), tensor.size, strict=True)
        )

    return reindexed(context, tensor, tensor.size, index_map)


@register_lowering(aten.constant_pad_nd.default)
def constant_pad_nd(
    context: LoweringContext, tensor: TensorValue, pad: Sequence[Any], value: Any = 0
) -> TensorValue:
    dtype = tensor.dtype
    compute = compute_dtype(dtype)
    rank = len(tensor.size)
    before: list[sympy.Expr] = [sympy.S.Zero] * rank
    padded = [False] * rank
    for position in range(len(pad) // 2):
        d = rank - 1 - position
        before[d] = to_expression(pad[2 * position])
        padded[d] = pad[2 * position] != 0 or pad[2 * position + 1] != 0

    def function(ops: BodyRecorder, index: Index) -> Value:
        shifted = tuple(i - b for i, b in zip(index, before, strict=True))
        bounds = [(shifted[d], tensor.size[d]) for d in range(rank) if padded[d]]
        other = number_of(value, compute)
        return ops.to_dtype(load_within(ops, tensor, shifted, compute, other, bounds)[0], dtype)

    return context.result(function, [tensor], 6)


def bounds_mask(
    ops: BodyRecorder, positions: Sequence[tuple[sympy.Expr, sympy.Expr]]
) -> Value | None:
    """Whether ``0 <= position < extent`` for all; None where the loop ranges prove it."""
    mask: Value | None = None
    for position, extent in positions:
        low, high = ops.ranges.bounds(position)
        tests = []
        if low is None or low < 0:
            tests.append(ops.ge(ops.index_expr(position, torch.int64), 0))
        extent_low, _ = ops.ranges.bounds(extent)
        if high is None or extent_low is None or high >= extent_low:
            tests.append(ops.lt(ops.index_expr(position, torch.int64), extent))
        for test in tests:
            mask = test if mask is None else ops.logical_and(mask, test)
    return mask


def load_where(
    ops: BodyRecorder,
    mask: Value | None,
    tensor: TensorValue,
    index: Index,
    dtype: torch.dtype,
    other: bool | int | float,
) -> Value:
    """The element at ``index``, ``other`` where there is a ``mask`` that doesn't hold."""

    def body(nested: Any) -> Value:
        return nested.to_dtype(tensor.load(nested, index), dtype)  # type: ignore[no-any-return]

    return body(ops) if mask is None else ops.masked(mask, body, other)


def load_within(
    ops: BodyRecorder,
    tensor: TensorValue,
    index: Index,
    dtype: torch.dtype,
    other: bool | int | float,
    bounds: Sequence[tuple[sympy.Expr, sympy.Expr]],
) -> tuple[Value, Value | None]:
    """The element at ``index``, ``other`` outside the ``(position, extent)`` of ``bounds``; and the mask."""
    mask = bounds_mask(ops, bounds)
    return load_where(ops, mask, tensor, index, dtype, other), mask


# -- functional forms of writes to a view ------------------------------------------------------------------


@register_lowering(aten.slice_scatter.default)
def slice_scatter(
    context: LoweringContext,
    tensor: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    return _overwritten(context, tensor, source, sliced(context, tensor, dim, start, end, step))


@register_lowering(aten.select_scatter.default)
def select_scatter(
    context: LoweringContext, tensor: TensorValue, source: TensorValue, dim: int, index: Any
) -> TensorValue:
    return _overwritten(context, tensor, source, selected(context, tensor, dim, index))


def _overwritten(
    context: LoweringContext, tensor: TensorValue, source: TensorValue, window: Window
) -> TensorValue:
    """``tensor`` with ``source`` in ``window``."""
    dtype, compute = tensor.dtype, compute_dtype(tensor.dtype)
    dim, start, step = window.dim, window.start, window.step
    extent = window.extent(source)

    def function(ops: BodyRecorder, index: Index) -> Value:
        shifted = index[dim] - start
        position = shifted if step == 1 else ops.ranges.floor_div(shifted, step)
        mask = bounds_mask(ops, [(position, extent)])
        if step != 1:
            offset = ops.index_expr(ops.ranges.modulo(shifted, step), torch.int64)
            aligned = ops.eq(offset, 0)
            mask = aligned if mask is None else ops.logical_and(mask, aligned)
        middle = () if window.drops_dim else (position,)
        where = index[:dim] + middle + index[dim + 1 :]
        inner = load_where(ops, mask, source, where, compute, number_of(0, compute))
        if mask is None:
            return ops.to_dtype(inner, dtype)
        outer = ops.to_dtype(tensor.load(ops, index), compute)
        return ops.to_dtype(ops.where(mask, inner, outer), dtype)

    return context.result(function, [tensor, source], 6)


@register_lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    context: LoweringContext,
    tensor: TensorValue,
    source: TensorValue,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> TensorValue:
    target = _fresh_copy(context, tensor)
    part = diagonal_of(target, source.size, offset, dim1, dim2)
    assert part.stride is not None
    return _written(context, target, source, part.stride, part.offset - target.offset)


@register_lowering(aten.as_strided_scatter.default)
def as_strided_scatter(
    context: LoweringContext,
    tensor: TensorValue,
    source: TensorValue,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> TensorValue:
    target = _fresh_copy(context, tensor)
    window = tuple(to_expression(s) for s in stride)
    return _written(context, target, source, window, to_expression(storage_offset or 0))


def _fresh_copy(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    """A realised copy in a buffer of its own, with the strides of the node's result."""
    return context.realize(context.copy_of(tensor, storage_stride(context.meta)))


def _written(
    context: LoweringContext,
    target: TensorValue,
    source: TensorValue,
    stride: tuple[sympy.Expr, ...],
    offset: sympy.Expr,
) -> TensorValue:
    """Append the node that writes ``source`` to a window of ``target``'s buffer."""
    name = target.storage.buffer
    assert name is not None
    dtype = target.dtype

    def program(ops: BodyRecorder, index: Index) -> None:
        value = ops.to_dtype(source.load(ops, index), dtype)
        ops.store(name, dot(index, stride, offset), value)

    origins = context.origin()
    context.program_node(source.size, program, origins)
    return target
