"""Strides of functional values: what a write gave a place in memory has to be kept where it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from .._torch import at_least_one, is_empty, known_equal, known_true, size_hint
from ..unsupported import Unsupported
from .emitter import Emitter

aten = torch.ops.aten


def same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether sizes agree in every call, and strides in every dimension in which they matter."""
    if left.dim() != right.dim() or not all(map(known_equal, left.shape, right.shape)):
        return False
    if is_empty(left):
        return True
    return all(
        known_equal(size, 1) or known_equal(a, b)
        for size, a, b in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions from outermost to innermost in memory, as far as the first call's strides say."""
    strides, sizes = tuple(tensor.stride()), tuple(tensor.shape)
    wide = [not known_equal(size, 1) for size in sizes]
    return sorted(range(len(sizes)), key=lambda d: (size_hint(strides[d]), wide[d]), reverse=True)


def dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from outermost to innermost in memory, None if the tensor has gaps or overlaps.

    With symbolic sizes: None if it is not sure for all of them.
    """
    strides, sizes = tuple(tensor.stride()), tuple(tensor.shape)
    wide = [not known_equal(size, 1) for size in sizes]
    order = memory_order(tensor)
    if is_empty(tensor):
        return order  # whatever its strides are
    expected: Any = 1
    unless_empty: Any = 1  # where a size may be 0, strides are computed as if it was 1
    for dimension in reversed(order):
        found = (known_equal(strides[dimension], e) for e in (expected, unless_empty))
        if wide[dimension] and not any(found):
            return None
        expected = expected * sizes[dimension]
        unless_empty = unless_empty * at_least_one(sizes[dimension])
    return order


def copied_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions from outermost to innermost in a dense copy, which keeps their order as eager's do."""
    sizes, strides = map(size_hint, tensor.shape), map(size_hint, tensor.stride())
    like = torch.empty_strided(tuple(sizes), tuple(strides), device="meta")
    return memory_order(torch.empty_like(like))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may be one place in memory: False if it is sure, in every call, that none are."""
    if dense_order(tensor) is not None:
        return False
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    wide = [d for d in range(len(sizes)) if not known_equal(sizes[d], 1)]
    reach: Any = 0
    for d in sorted(wide, key=lambda d: size_hint(strides[d])):
        if not known_true(strides[d] > reach):
            return True
        reach = reach + strides[d] * (sizes[d] - 1)
    return False


@dataclass(frozen=True)
class Window:
    """The elements of a storage that a tensor has, where sizes vary those of the call that is captured."""

    offset: int
    extents: Mapping[int, int]
    """By stride, in elements: how many steps of it there are."""

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor) -> Window:
        """That of ``tensor``."""
        extents: dict[int, int] = {}
        for size, stride in zip(
            map(size_hint, tensor.shape), map(size_hint, tensor.stride()), strict=True
        ):
            if size != 1 and stride != 0:
                extents[stride] = size + extents.get(stride, 1) - 1
        return cls(size_hint(tensor.storage_offset()), extents)

    def may_meet(self, other: Window) -> bool:
        """Whether an element may be in both: False if it is sure that none is."""
        strides = sorted({*self.extents, *other.extents}, reverse=True)
        steps = [(s, self.extents.get(s, 1) - 1, other.extents.get(s, 1) - 1) for s in strides]
        return _may_bridge(other.offset - self.offset, steps)


def _may_bridge(distance: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    """Whether steps may add up to ``distance``: of each stride some, at most so many ahead or back.

    Strides come from the greatest on.  True also where many numbers of steps of one would have to be tried.
    """
    if not steps:
        return distance == 0
    (stride, ahead, back), *smaller = steps
    least = -(-(distance - sum(s * n for s, n, _ in smaller)) // stride)
    most = (distance + sum(s * n for s, _, n in smaller)) // stride
    tried = range(max(least, -back), min(most, ahead) + 1)
    return len(tried) > 2 or any(_may_bridge(distance - k * stride, smaller) for k in tried)


def with_layout_of(emit: Emitter, node: torch.fx.Node, wanted: torch.Tensor) -> torch.fx.Node:
    """``node``, copied if its strides differ from those of ``wanted``, which has to be dense."""
    value = node.meta["val"]
    if same_layout(value, wanted):
        return node
    order = dense_order(wanted)
    if order is None:
        raise Unsupported(
            "layout with gaps", f"size {tuple(wanted.shape)}, stride {wanted.stride()}"
        )
    permuted = emit.call(aten.permute.default, node, order)
    dense = emit.call(aten.clone.default, permuted, memory_format=torch.contiguous_format)
    inverse = [order.index(d) for d in range(len(order))]
    return emit.call(aten.permute.default, dense, inverse)


def row_widths(tensor: torch.Tensor) -> tuple[list[int], list[Any]] | None:
    """How a tensor with gaps lies in a dense one: its dims from the outermost on, and the whole's sizes.

    ``x[:, ::2]`` of four columns is two columns of which each is the first of two: order ``[0, 1]``, sizes
    ``[rows, 2, 2]``.  None where it is a part of no dense tensor, as what overlaps itself, or where that
    depends on sizes.
    """
    strides, sizes = tuple(tensor.stride()), tuple(tensor.shape)
    narrow = [d for d in range(len(sizes)) if known_equal(sizes[d], 1)]
    order = [d for d in memory_order(tensor) if d not in narrow]
    widths: list[Any] = []
    for dim, outer in zip(order, [None, *order], strict=False):
        width = sizes[dim]
        if outer is not None:
            if not known_true(strides[dim] > 0):
                return None
            width = strides[outer] // strides[dim]
            if not known_equal(width * strides[dim], strides[outer]):
                return None
        if not known_true(width >= sizes[dim]):
            return None
        widths.append(width)
    if not order or not known_true(strides[order[-1]] > 0):
        return None
    return [*narrow, *order], [*(1 for _ in narrow), *widths, strides[order[-1]]]


def _repeated(tensor: torch.Tensor) -> list[int]:
    """The dimensions along which all elements are one place in memory."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    return [
        d
        for d, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if known_equal(stride, 0) and not known_equal(size, 1)
    ]


def _of_one_each(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The first part of a tensor along each of some dimensions."""
    for d in dims:
        tensor = tensor.narrow(d, 0, 1)
    return tensor


def may_lie_as(wanted: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether ``value``, or a copy of it by :func:`with_strides_of`, lies as ``wanted`` in this call."""
    wanted, value = (_of_one_each(t, _repeated(wanted)) for t in (wanted, value))
    if dense_order(wanted) is not None or row_widths(wanted) is not None:
        return True
    sizes, own, others = (
        [size_hint(n) for n in numbers]
        for numbers in (wanted.shape, value.stride(), wanted.stride())
    )
    return all(n == 1 or a == b for n, a, b in zip(sizes, own, others, strict=True))


def with_strides_of(emit: Emitter, node: torch.fx.Node, wanted: torch.Tensor) -> torch.fx.Node:
    """``node`` for a caller, copied if eager gives it other strides, with gaps too.

    What gaps hold is nobody's.  What is expanded is a copy that is expanded.  Strides that no copy has, as
    other overlapping ones, are left.
    """
    if same_layout(node.meta["val"], wanted):
        return node
    if repeated := _repeated(wanted):
        one = node
        for d in repeated:
            one = emit.call(aten.slice.Tensor, one, d, 0, 1)
        one = with_strides_of(emit, one, _of_one_each(wanted, repeated))
        return emit.call(aten.expand.default, one, [*wanted.shape])
    if dense_order(wanted) is not None:
        return with_layout_of(emit, node, wanted)
    lies = row_widths(wanted)
    return node if lies is None else _part_of_larger(emit, node, wanted, *lies)


def _part_of_larger(
    emit: Emitter, node: torch.fx.Node, wanted: torch.Tensor, order: list[int], widths: list[Any]
) -> torch.fx.Node:
    """A copy as a part of a larger tensor: padded behind each dim, and cut off again."""
    sizes = [*(wanted.shape[d] for d in order), 1]
    moved = emit.call(aten.permute.default, node, order)
    moved = emit.call(aten.unsqueeze.default, moved, -1)
    moved = emit.call(aten.clone.default, moved, memory_format=torch.contiguous_format)
    behind = [(0, width - size) for width, size in zip(widths, sizes, strict=True)]
    padding = [number for pair in reversed(behind) for number in pair]
    cut = emit.call(aten.constant_pad_nd.default, moved, padding, 0)
    for dim, (width, size) in enumerate(zip(widths, sizes, strict=True)):
        if not known_equal(width, size):
            cut = emit.call(aten.slice.Tensor, cut, dim, 0, size)
    cut = emit.call(aten.squeeze.dim, cut, len(order))
    return emit.call(aten.permute.default, cut, [order.index(d) for d in range(len(order))])


def with_placement_of(emit: Emitter, node: torch.fx.Node, wanted: torch.Tensor) -> torch.fx.Node:
    """``node`` with the strides of ``wanted`` and starting at its storage's start, copied if need be."""
    node = with_layout_of(emit, node, wanted)
    if (
        not known_equal(node.meta["val"].storage_offset(), 0)
        or dense_order(node.meta["val"]) is None
    ):
        node = emit.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        node = with_layout_of(emit, node, wanted)
    return node
