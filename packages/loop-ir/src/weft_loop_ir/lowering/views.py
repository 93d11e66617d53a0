"""Views: they become strides on a storage's layout and a map of indices; and what is made by views."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from weft_loop_ir._torch import is_always_one
from weft_loop_ir.expressions import to_expression
from weft_loop_ir.lowering.context import LoweringContext, storage_stride
from weft_loop_ir.lowering.registry import RULES, Rule, overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, Storage, TensorValue, whole
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.unsupported import Unsupported

aten = torch.ops.aten
register_view = functools.partial(register_lowering, any_dtype=True)
Size = tuple[sympy.Expr, ...]


def normalize_dim(dim: int, rank: int) -> int:
    """``dim`` counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


# -- reshape -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8192)
def view_stride(size: Size, stride: Size, target: Size) -> Size | None:
    """The strides with which a tensor of ``size`` and ``stride`` views as ``target``; None if none do."""
    if any(n == 0 for n in size):
        return None
    result: list[sympy.Expr] = []
    groups = reshape_groups(size, target)
    if groups is None:
        return None
    for source_dims, target_dims in groups:
        step = _group_stride([(size[d], stride[d]) for d in source_dims if size[d] != 1])
        if step is None:
            return None
        strides: list[sympy.Expr] = []
        for d in reversed(target_dims):
            strides.append(step)
            step = step * target[d]
        result.extend(reversed(strides))
    return tuple(result)


def _group_stride(dims: list[tuple[sympy.Expr, sympy.Expr]]) -> sympy.Expr | None:
    """The innermost stride of dims that lie contiguously one within the other, None if they don't."""
    if not dims:
        return sympy.S.One
    for (_, outer), (inner_size, inner) in itertools.pairwise(dims):
        if sympy.expand(outer - inner * inner_size) != 0:
            return None
    return dims[-1][1]


@functools.lru_cache(maxsize=8192)
def reshape_groups(size: Size, target: Size) -> list[tuple[list[int], list[int]]] | None:
    """Split a reshape in the smallest runs of dims of equal element count, in order.

    Each entry is (dims of ``size``, dims of ``target``).  None where no split can be proved.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(size) or j < len(target):
        left: list[int] = []
        right: list[int] = []
        left_count: sympy.Expr = sympy.S.One
        right_count: sympy.Expr = sympy.S.One
        if i < len(size):
            left.append(i)
            left_count = size[i]
            i += 1
        if j < len(target):
            right.append(j)
            right_count = target[j]
            j += 1
        while left_count != right_count:
            grow_left = _grows_left(left_count, right_count, i < len(size), j < len(target))
            if grow_left is None:
                return None
            if grow_left:
                left.append(i)
                left_count = sympy.expand(left_count * size[i])
                i += 1
            else:
                right.append(j)
                right_count = sympy.expand(right_count * target[j])
                j += 1
        groups.append((left, right))
    return groups


def _grows_left(
    left: sympy.Expr, right: sympy.Expr, left_open: bool, right_open: bool
) -> bool | None:
    """Which side of a group to extend: the one with fewer elements; None when neither can be."""
    if left.is_Integer and right.is_Integer:
        wanted = bool(left < right)
    else:
        quotient = (right / left).as_numer_denom()
        wanted = quotient[1] == 1  # the left count divides the right one
    if wanted:
        return True if left_open else None
    return False if right_open else (True if left_open and not left.is_Integer else None)


def reshape_index(size: Size, target: Size) -> Any:
    """The map from an index into ``target`` to one into ``size`` of the same row-major position."""
    groups = reshape_groups(size, target)
    if groups is None:
        groups = [(list(range(len(size))), list(range(len(target))))]

    def index_map(ops: BodyRecorder, index: Index) -> Index:
        result: list[sympy.Expr] = [sympy.S.Zero] * len(size)
        ranges = ops.ranges
        for source_dims, target_dims in groups:
            real_source = [d for d in source_dims if size[d] != 1]
            real_target = [d for d in target_dims if target[d] != 1]
            if len(real_source) == 1 and len(real_target) == 1:
                result[real_source[0]] = index[real_target[0]]
                continue
            linear: sympy.Expr = sympy.S.Zero
            for d in real_target:
                linear = linear * target[d] + index[d]
            linear = sympy.expand_mul(linear)
            for position, d in enumerate(reversed(real_source)):
                if position == len(real_source) - 1:
                    result[d] = linear
                else:
                    result[d] = ranges.modulo(linear, size[d])
                    linear = ranges.floor_div(linear, size[d])
        return tuple(result)

    return index_map


def reshape(tensor: TensorValue, size: Size) -> TensorValue:
    """``tensor`` with its row-major sequence of elements in a new ``size``; a copy where eager copies."""
    if size == tensor.size:
        return tensor
    stride = None if tensor.stride is None else view_stride(tensor.size, tensor.stride, size)
    return tensor.view(size, stride, tensor.offset, reshape_index(tensor.size, size))


@register_view(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default
)
def view(
    context: LoweringContext, tensor: TensorValue, size: Any, stride: Any = None
) -> TensorValue:
    return reshape(tensor, context.meta_size())


# -- dims permuted, added, removed ---------------------------------------------------------------------


def affine_view(
    tensor: TensorValue, size: Size, places: Sequence[tuple[Any, Mapping[int, Any]]]
) -> TensorValue:
    """The view of ``size`` whose index says for each dim of ``tensor`` where its element is.

    ``places`` has for each of these a start and, by the number of a dim of the view, the step along it.
    """
    stride, offset = None, tensor.offset
    if tensor.stride is not None:
        strides = [sympy.S.Zero] * len(size)
        for own, (start, steps) in zip(tensor.stride, places, strict=True):
            offset = offset + start * own
            for k, step in steps.items():
                strides[k] = strides[k] + step * own
        stride = tuple(strides)

    def place(index: Index, start: Any, steps: Mapping[int, Any]) -> sympy.Expr:
        moved = [index[k] if step == 1 else index[k] * step for k, step in steps.items()]
        return moved[0] if start == 0 and len(moved) == 1 else sympy.Add(start, *moved)

    def index_map(ops: BodyRecorder, index: Index) -> Index:
        return tuple(itertools.starmap(functools.partial(place, index), places))

    return tensor.view(size, stride, offset, index_map)


def permute_dims(tensor: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dim ``k`` of the result is dim ``order[k]`` of ``tensor``, whose others have extent 1."""
    steps = {dim: {position: 1} for position, dim in enumerate(order)}
    places = [(0, steps.get(dim, {})) for dim in range(len(tensor.size))]
    return affine_view(tensor, tuple(tensor.size[d] for d in order), places)


@register_view(aten.permute.default)
def permute(context: LoweringContext, tensor: TensorValue, dims: Sequence[int]) -> TensorValue:
    return permute_dims(tensor, [normalize_dim(d, len(tensor.size)) for d in dims])


@register_view(aten.transpose.int)
def transpose(context: LoweringContext, tensor: TensorValue, dim0: int, dim1: int) -> TensorValue:
    order = list(range(len(tensor.size)))
    if not order:
        return tensor
    first, second = normalize_dim(dim0, len(order)), normalize_dim(dim1, len(order))
    order[first], order[second] = order[second], order[first]
    return permute_dims(tensor, order)


@register_view(aten.t.default)
def t(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    return permute_dims(tensor, list(reversed(range(len(tensor.size)))))


@register_view(aten.expand.default)
def expand(
    context: LoweringContext, tensor: TensorValue, size: Any, *, implicit: bool = False
) -> TensorValue:
    return expand_to(tensor, context.meta_size())


def expand_to(tensor: TensorValue, size: Size) -> TensorValue:
    """``tensor`` repeated along dims of extent 1, and along new leading dims."""
    skip = len(size) - len(tensor.size)
    sizes = zip(tensor.size, size[skip:], strict=True)
    places = [(0, {} if n == 1 and m != 1 else {k: 1}) for k, (n, m) in enumerate(sizes, skip)]
    return affine_view(tensor, size, places)


def remove_dims(tensor: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Drop dims of extent 1."""
    return permute_dims(tensor, [d for d in range(len(tensor.size)) if d not in dims])


@register_view(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(context: LoweringContext, tensor: TensorValue, dims: Any = None) -> TensorValue:
    rank = len(tensor.size)
    if dims is None:
        chosen = list(range(rank))
    else:
        given = [dims] if isinstance(dims, int) else dims
        chosen = [normalize_dim(d, rank) for d in given]
    (traced,) = context.call.all_input_nodes
    sizes = traced.meta["val"].shape  # by which the result's rank was found
    ones = [d for d in chosen if d < rank and (tensor.size[d] == 1 or is_always_one(sizes[d]))]
    return remove_dims(tensor, ones)


@register_view(aten.unsqueeze.default)
def unsqueeze(context: LoweringContext, tensor: TensorValue, dim: int) -> TensorValue:
    return insert_dim(tensor, normalize_dim(dim, len(tensor.size) + 1))


def insert_dim(tensor: TensorValue, dim: int) -> TensorValue:
    """A new dim of extent 1 before ``dim``."""
    size = tensor.size[:dim] + (sympy.S.One,) + tensor.size[dim:]
    stride = None
    if tensor.stride is not None:
        step = tensor.size[dim] * tensor.stride[dim] if dim < len(tensor.size) else sympy.S.One
        stride = tensor.stride[:dim] + (step,) + tensor.stride[dim:]

    def index_map(ops: BodyRecorder, index: Index) -> Index:
        return index[:dim] + index[dim + 1 :]

    return tensor.view(size, stride, tensor.offset, index_map)


# -- parts ---------------------------------------------------------------------------------------------


def slice_dim(
    tensor: TensorValue, dim: int, start: sympy.Expr, step: sympy.Expr, extent: sympy.Expr
) -> TensorValue:
    """``extent`` elements of ``dim`` from ``start`` on, each ``step``-th."""
    places: list[tuple[Any, dict[int, Any]]] = [(0, {d: 1}) for d in range(len(tensor.size))]
    places[dim] = (start, {dim: step})
    return affine_view(tensor, (*tensor.size[:dim], extent, *tensor.size[dim + 1 :]), places)


def clamp_start(context: LoweringContext, start: Any, extent: sympy.Expr) -> sympy.Expr:
    """The first index of a slice, as Python and eager clamp it."""
    if start is None:
        return sympy.S.Zero
    if isinstance(start, int) and isinstance(extent, sympy.Integer):  # without sympy's detours
        size = int(extent)
        return sympy.Integer(max(start + size, 0) if start < 0 else min(start, size))
    position = context.from_start(start, extent)
    if position != to_expression(start):
        return position if position.is_nonnegative else sympy.Max(position, 0)
    if position == 0 or (isinstance(extent, sympy.Integer) and isinstance(position, sympy.Integer)):
        return sympy.Min(position, extent)
    return position if (extent - position).is_nonnegative else sympy.Min(position, extent)


@register_view(aten.slice.Tensor)
def slice_(
    context: LoweringContext,
    tensor: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    d = normalize_dim(dim, len(tensor.size))
    extent = context.meta_size()[d]
    first = clamp_start(context, start, tensor.size[d])
    return slice_dim(tensor, d, first, to_expression(step), extent)


def select_index(tensor: TensorValue, dim: int, position: sympy.Expr) -> TensorValue:
    """``tensor`` at one ``position`` of ``dim``, the dim dropped."""
    places: list[tuple[Any, dict[int, Any]]] = [
        (0, {d - (d > dim): 1}) for d in range(len(tensor.size))
    ]
    places[dim] = (position, {})
    return affine_view(tensor, tensor.size[:dim] + tensor.size[dim + 1 :], places)


@register_view(aten.select.int)
def select(context: LoweringContext, tensor: TensorValue, dim: int, index: Any) -> TensorValue:
    d = normalize_dim(dim, len(tensor.size))
    return select_index(tensor, d, context.from_start(index, tensor.size[d]))


@register_view(
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
def split(
    context: LoweringContext, tensor: TensorValue, sections: Any, dim: int = 0
) -> tuple[TensorValue, ...]:
    d = normalize_dim(dim, len(tensor.size))
    parts = []
    start: sympy.Expr = sympy.S.Zero
    for position in range(len(context.meta)):
        extent = context.meta_size(position)[d]
        parts.append(slice_dim(tensor, d, start, sympy.S.One, extent))
        start = start + extent
    return tuple(parts)


@register_view(aten.unbind.int)
def unbind(context: LoweringContext, tensor: TensorValue, dim: int = 0) -> tuple[TensorValue, ...]:
    d = normalize_dim(dim, len(tensor.size))
    return tuple(select_index(tensor, d, sympy.Integer(k)) for k in range(len(context.meta)))


@register_view(aten.diagonal.default)
def diagonal(
    context: LoweringContext, tensor: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    return diagonal_of(tensor, context.meta_size(), offset, dim1, dim2)


def diagonal_of(tensor: TensorValue, size: Size, offset: int, dim1: int, dim2: int) -> TensorValue:
    """The diagonal number ``offset`` of two dims, which becomes the last one of ``size``."""
    first = normalize_dim(dim1, len(tensor.size))
    second = normalize_dim(dim2, len(tensor.size))
    rows, columns = (-offset, 0) if offset < 0 else (0, offset)
    last = len(tensor.size) - 2
    if size[-1] == 0:
        rows = columns = 0
    kept = [d for d in range(len(tensor.size)) if d not in (first, second)]
    places = {dim: (0, {position: 1}) for position, dim in enumerate(kept)}
    places |= {first: (rows, {last: 1}), second: (columns, {last: 1})}
    return affine_view(tensor, size, [places[d] for d in range(len(tensor.size))])


@register_view(aten.unfold.default)
def unfold(
    context: LoweringContext, tensor: TensorValue, dimension: int, size: int, step: int
) -> TensorValue:
    if not tensor.size:
        return insert_dim(tensor, 0)
    d = normalize_dim(dimension, len(tensor.size))
    places = [(0, {k: 1}) for k in range(len(tensor.size))]
    places[d] = (0, {d: step, len(tensor.size): 1})
    return affine_view(tensor, context.meta_size(), places)


@register_view(aten.as_strided.default)
def as_strided(
    context: LoweringContext,
    tensor: TensorValue,
    size: Any,
    stride: Any,
    storage_offset: Any = None,
) -> TensorValue:
    context.realize(tensor)
    fake = context.meta
    return strided_window(tensor, fake, storage_offset)


def strided_window(tensor: TensorValue, fake: torch.Tensor, storage_offset: Any) -> TensorValue:
    """The window on ``tensor``'s buffer that has the size and strides of ``fake``.

    ``storage_offset`` counts from the start of torch's storage; None keeps the tensor's own.
    """
    storage = tensor.storage
    assert storage.buffer is not None
    if storage_offset is None:
        offset = tensor.offset
    else:
        if not storage.storage_offset.is_Integer:
            raise Unsupported(
                "symbolic storage offset",
                f"a strided view of {storage.buffer}",
                "Pass a tensor that starts where its storage does.",
            )
        offset = to_expression(storage_offset) - storage.storage_offset
    window = Storage(
        tuple(to_expression(s) for s in fake.shape),
        tensor.dtype,
        tensor.device,
        buffer=storage.buffer,
        stride=tuple(to_expression(s) for s in fake.stride()),
        offset=offset,
        cost=storage.cost,
    )
    window.storage_offset = storage.storage_offset
    return whole(window)


@register_view(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
def alias(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    return tensor


# -- what select_scatter and slice_scatter replace -----------------------------------------------------


@dataclass(frozen=True)
class Window:
    """The elements ``start, start + step, ...`` of dimension ``dim``.

    With ``drops_dim`` it is one element, and what replaces it has no dimension ``dim``.
    """

    dim: int
    start: sympy.Expr
    step: sympy.Expr
    drops_dim: bool

    def extent(self, source: TensorValue) -> sympy.Expr:
        """How many elements of ``dim`` ``source`` replaces."""
        return sympy.S.One if self.drops_dim else source.size[self.dim]

    def view(self, base: TensorValue, source: TensorValue) -> TensorValue:
        """The elements of ``base`` that ``source`` replaces, in ``source``'s shape."""
        if self.drops_dim:
            return select_index(base, self.dim, self.start)
        return slice_dim(base, self.dim, self.start, self.step, self.extent(source))


def selected(context: LoweringContext, base: TensorValue, dim: int, index: Any) -> Window:
    d = normalize_dim(dim, len(base.size))
    return Window(d, context.from_start(index, base.size[d]), sympy.S.One, True)


def sliced(
    context: LoweringContext,
    base: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Window:
    d = normalize_dim(dim, len(base.size))
    return Window(d, clamp_start(context, start, base.size[d]), to_expression(step), False)


# -- views that are copied -----------------------------------------------------------------------------


VIEWS = (
    "view expand permute transpose.int select.int slice.Tensor squeeze squeeze.dim squeeze.dims "
    "unsqueeze diagonal alias detach t unfold"
).split()
"""Views whose ``_copy`` form has the same arguments."""


def _copy_rule(view: Rule) -> Rule:
    def rule(context: LoweringContext, *arguments: Any, **keywords: Any) -> TensorValue:
        result: TensorValue = view(context, *arguments, **keywords)
        return context.copy_of(result)

    return rule


for _name in VIEWS:
    _packet, _, _overload = _name.partition(".")
    _view = overload(_name)
    _copy = overload(f"{_packet}_copy" + (f".{_overload}" if _overload else ""))
    if _view in RULES and _copy is not None:
        register_lowering(_copy)(_copy_rule(RULES[_view]))


@register_lowering(torch.ops.aten.contiguous.default, torch.ops.prims.copy_strided.default)
def in_other_strides(
    context: LoweringContext, tensor: TensorValue, *arguments: Any, **keywords: Any
) -> TensorValue:
    """The same elements as they lie in the result: ``contiguous`` has a view's schema and may copy."""
    return context.copy_of(tensor, storage_stride(context.meta))


narrow_copy = overload("narrow_copy")
if narrow_copy is not None:

    @register_lowering(narrow_copy)
    def narrow(
        context: LoweringContext, tensor: TensorValue, dim: int, start: Any, length: Any
    ) -> TensorValue:
        slice_: Rule = RULES[torch.ops.aten.slice.Tensor]
        return context.copy_of(slice_(context, tensor, dim, start, start + length, 1))
