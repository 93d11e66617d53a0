"""Indexing by tensors: indices become ``indirect`` symbols, writes become a copy and a scatter."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import dot
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, storage_stride
from weft_loop_ir.lowering.promotion import broadcast_index, broadcast_size, read
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, IndexMap, TensorValue
from weft_loop_ir.lowering.views import insert_dim, normalize_dim
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
INDEX_DTYPES = (torch.int64, torch.int32)
ATOMIC_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


def bound(
    ops: BodyRecorder, tensor: TensorValue, index: Index, extent: sympy.Expr, wraps: bool
) -> sympy.Symbol:
    """The symbol for ``tensor``'s element at ``index``, an index into ``extent`` elements.

    Unless it ``wraps``, a negative index is an error, as one past the end is; the error then tells it less
    the extent, which is known apart from an index past the end.
    """
    value = ops.to_dtype(tensor.load(ops, index), torch.int64)
    if not wraps:
        negative = ops.lt(value, 0)
        value = ops.where(negative, ops.sub(value, extent), value)
    return ops.indirect_symbol(value, extent, True)


def with_a_dim(tensor: TensorValue) -> TensorValue:
    """The tensor, a number as a tensor of one element."""
    return tensor if tensor.size else insert_dim(tensor, 0)


def along(tensor: TensorValue, dim: int, indices: TensorValue, is_row: bool = False) -> IndexMap:
    """The place along ``dim`` that ``indices`` give: each element's, or as a row those of whole slices."""
    d = normalize_dim(dim, len(tensor.size))

    def place(ops: BodyRecorder, index: Index) -> Index:
        where = (index[d],) if is_row else index
        return (*index[:d], bound(ops, indices, where, tensor.size[d], False), *index[d + 1 :])

    return place


def check_index(tensor: TensorValue) -> None:
    if tensor.dtype not in INDEX_DTYPES:
        raise NoLowering(f"an index of dtype {tensor.dtype}")


def check_row(context: LoweringContext, size: Index) -> None:
    """A kernel checks indices of rows without elements too, which a loop over elements would not meet."""
    if any(extent == 0 or extent.free_symbols & context.data.defined for extent in size):
        raise NoLowering("indices of rows that may have no elements")


def _read_at(
    context: LoweringContext,
    tensor: TensorValue,
    place: IndexMap,
    indices: Sequence[TensorValue],
    instructions: int = 4,
) -> TensorValue:
    """The elements of ``tensor`` that ``place`` gives for an index of the result, by ``indices``."""

    def function(ops: BodyRecorder, index: Index) -> Value:
        return tensor.load(ops, place(ops, index))

    return context.result(function, [tensor, *indices], instructions, True)


@register_lowering(aten.embedding.default)
def embedding(
    context: LoweringContext,
    weight: TensorValue,
    indices: TensorValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorValue:
    check_index(indices)
    check_row(context, weight.size[1:])

    def place(ops: BodyRecorder, index: Index) -> Index:
        return bound(ops, indices, index[:-1], weight.size[0], False), index[-1]

    return _read_at(context, weight, place, [indices])


@register_lowering(aten.index_select.default)
def index_select(
    context: LoweringContext, tensor: TensorValue, dim: int, indices: TensorValue
) -> TensorValue:
    check_index(indices)
    indices, source = with_a_dim(indices), with_a_dim(tensor)
    d = normalize_dim(dim, len(source.size))
    check_row(context, source.size[:d] + source.size[d + 1 :])
    place = along(source, dim, indices, is_row=True)

    def with_dim(ops: BodyRecorder, index: Index) -> Index:
        return place(ops, index or (sympy.S.Zero,))

    return _read_at(context, source, with_dim, [indices])


@register_lowering(aten.gather.default)
def gather(
    context: LoweringContext,
    tensor: TensorValue,
    dim: int,
    indices: TensorValue,
    *,
    sparse_grad: bool = False,
) -> TensorValue:
    check_index(indices)
    if not tensor.size or len(indices.size) != len(tensor.size):
        raise NoLowering("gather from a tensor without dims, or at no places of other dims")
    return _read_at(context, tensor, along(tensor, dim, indices), [indices])


class _AdvancedIndex:
    """The layout of ``tensor[indices]``: where the dims of the broadcast indices stand in the result."""

    def __init__(self, tensor: TensorValue, indices: Sequence[TensorValue | None]) -> None:
        given = [(d, i) for d, i in enumerate(indices) if i is not None]
        if not given:
            raise NoLowering("indexing without indices")
        for _, index in given:
            check_index(index)
        self.tensor = tensor
        self.given = given
        self.shape = broadcast_size([i.size for _, i in given])
        dims = [d for d, _ in given]
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        self.position = dims[0] if adjacent else 0
        self.kept = [d for d in range(len(tensor.size)) if d not in dims]

    @property
    def size(self) -> tuple[sympy.Expr, ...]:
        """The size of the result."""
        rest = tuple(self.tensor.size[d] for d in self.kept)
        return rest[: self.position] + self.shape + rest[self.position :]

    def source_index(self, ops: BodyRecorder, index: Index) -> Index:
        """The index into the tensor for an index into the result."""
        rank = len(self.shape)
        indexed = index[self.position : self.position + rank]
        rest = index[: self.position] + index[self.position + rank :]
        full: list[sympy.Expr] = [sympy.S.Zero] * len(self.tensor.size)
        for d, i in zip(self.kept, rest, strict=True):
            full[d] = i
        for d, tensor in self.given:
            where = broadcast_index(indexed, tensor.size, self.shape)
            full[d] = bound(ops, tensor, where, self.tensor.size[d], True)
        return tuple(full)


@register_lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(
    context: LoweringContext, tensor: TensorValue, indices: Sequence[TensorValue | None]
) -> TensorValue:
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        raise NoLowering("a mask as a subscript")
    layout = _AdvancedIndex(tensor, indices)
    given = [i for _, i in layout.given]
    return _read_at(context, tensor, layout.source_index, given, 4 * (1 + len(given)))


# -- writes ------------------------------------------------------------------------------------------------


def copy_to_write(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    return context.realize(context.copy_of(tensor, storage_stride(context.meta)))


def apart_from(context: LoweringContext, values: TensorValue, tensor: TensorValue) -> TensorValue:
    """``values`` as they are before anything is written to ``tensor``, whose memory may be written.

    A position that comes twice would read what has been stored there: ``y[i] = y[i] * 2``.
    """
    if tensor.storage.buffer in values.cost.reads and values.storage.buffer is None:
        return context.realize(context.copy_of(values))
    return values


def check_atomic(context: LoweringContext, dtype: torch.dtype, any_order: bool = False) -> None:
    """Atomic updates come in any order: unless that is the same, float results differ from run to run."""
    if context.options.deterministic and dtype.is_floating_point and not any_order:
        raise NoLowering("additions in one order")
    if dtype not in ATOMIC_DTYPES:
        raise NoLowering(f"atomic updates of {dtype}")


@register_lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    context: LoweringContext,
    tensor: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    masked = _masked_put(context, tensor, indices, values, accumulate)
    if masked is not None:
        return masked
    layout = _AdvancedIndex(tensor, indices)
    mode = "atomic_add" if accumulate else None
    if accumulate:
        check_atomic(context, tensor.dtype)
    values = apart_from(context, values, tensor)
    target = copy_to_write(context, tensor)
    size = layout.size

    def program(ops: BodyRecorder, index: Index) -> None:
        where = layout.source_index(ops, index)
        value = read(ops, values, index, size, tensor.dtype)
        store(ops, target, where, value, mode)

    context.program_node(size, program, context.origin())
    return target


def _masked_put(
    context: LoweringContext,
    tensor: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool,
) -> TensorValue | None:
    """``tensor[mask] = values`` as a selection, where the values don't depend on the place in the mask."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool:
        return None
    mask = indices[0]
    rank = len(mask.size)
    rest = tensor.size[rank:]
    extra = len(values.size) - len(rest)
    if rank == 0 or extra > 1 or (extra == 1 and values.size[0] != 1):
        return None
    if accumulate and not tensor.dtype.is_floating_point:
        return None
    compute = compute_dtype(tensor.dtype)

    def function(ops: BodyRecorder, index: Index) -> Value:
        chosen = mask.load(ops, index[:rank])
        old = ops.to_dtype(tensor.load(ops, index), compute)
        where = (sympy.S.Zero,) * max(extra, 0) + index[rank:]
        target = (sympy.S.One,) * max(extra, 0) + rest
        new = ops.to_dtype(read(ops, values, where, target, tensor.dtype), compute)
        if accumulate:
            new = ops.add(old, new)
        return ops.to_dtype(ops.where(chosen, new, old), tensor.dtype)

    inputs = [tensor, mask, values]
    return context.result(function, inputs, 3)


def store(
    ops: BodyRecorder, target: TensorValue, index: Index, value: Value, mode: str | None
) -> None:
    """Store to ``target``, which is a buffer; ``mode`` as that of ``ops.store``."""
    assert target.stride is not None and target.storage.buffer is not None
    ops.store(target.storage.buffer, dot(index, target.stride, target.offset), value, mode)
