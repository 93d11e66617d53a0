"""Tensors during lowering: a storage, computed or yet to be computed, and a strided view of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import contiguous_stride, dot
from weft_loop_ir.recording import BodyRecorder

Index = tuple[sympy.Expr, ...]
InnerFunction = Callable[[BodyRecorder, Index], Value]
IndexMap = Callable[[BodyRecorder, Index], Index]


@dataclass(frozen=True)
class Cost:
    """What one element costs to compute again: an upper bound, shared subexpressions counted twice."""

    instructions: int
    reads: frozenset[str]
    costly: bool  # contains a transcendental function, a division or an indirect access

    def plus(self, other: Cost) -> Cost:
        return Cost(
            self.instructions + other.instructions,
            self.reads | other.reads,
            self.costly or other.costly,
        )


NO_COST = Cost(0, frozenset(), False)


class Storage:
    """The elements of a tensor: a function of the index, until it is realised as a buffer.

    ``stride`` is the layout that the buffer has, or will have when the storage is realised.
    """

    def __init__(
        self,
        size: tuple[sympy.Expr, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        function: InnerFunction | None = None,
        cost: Cost = NO_COST,
        origins: frozenset[str] = frozenset(),
        buffer: str | None = None,
        stride: tuple[sympy.Expr, ...] | None = None,
        offset: sympy.Expr = sympy.S.Zero,
    ) -> None:
        self.size = size
        self.dtype = dtype
        self.device = device
        self.function = function
        self.cost = cost
        self.origins = origins
        self.buffer = buffer
        self.stride = contiguous_stride(size) if stride is None else stride
        self.offset = offset
        self.storage_offset: sympy.Expr = sympy.S.Zero
        """The absolute position of the buffer's start in torch's storage (an input may be a view)."""

    @property
    def is_realized(self) -> bool:
        return self.buffer is not None

    def load(self, ops: BodyRecorder, index: Index) -> Value:
        if self.buffer is not None:
            return ops.load(self.buffer, dot(index, self.stride, self.offset))
        key = (id(self), index)
        value = ops.memo.get(key)
        if value is None:
            assert self.function is not None
            value = ops.memo[key] = self.function(ops, index)
        return value


@dataclass(frozen=True, eq=False)
class TensorValue:
    """A window on a storage.

    ``index_map`` takes an index of the window to an index of the storage (None: they are equal);
    ``stride`` and ``offset`` say the same on the storage's layout.  Only between the steps of one lowering
    rule may ``stride`` be None: no strides express the window.
    """

    storage: Storage
    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...] | None
    offset: sympy.Expr = sympy.S.Zero
    index_map: IndexMap | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device

    @property
    def cost(self) -> Cost:
        return self.storage.cost

    def load(self, ops: BodyRecorder, index: Index) -> Value:
        """The element at ``index``, with the tensor's own dtype."""
        storage = self.storage
        if storage.buffer is not None and self.stride is not None:
            return ops.load(storage.buffer, dot(index, self.stride, self.offset))
        if self.index_map is not None:
            index = self.index_map(ops, index)
        return storage.load(ops, index)

    def view(
        self,
        size: tuple[sympy.Expr, ...],
        stride: tuple[sympy.Expr, ...] | None,
        offset: sympy.Expr,
        index_map: IndexMap,
    ) -> TensorValue:
        """A window on this window; ``index_map`` gives an index of this window."""
        outer = self.index_map
        if outer is None:
            return TensorValue(self.storage, size, stride, offset, index_map)

        def composed(ops: BodyRecorder, index: Index) -> Index:
            return outer(ops, index_map(ops, index))

        return TensorValue(self.storage, size, stride, offset, composed)


def whole(storage: Storage) -> TensorValue:
    """The window that is the entire storage."""
    return TensorValue(storage, storage.size, storage.stride, storage.offset)


def buffer_of(tensor: TensorValue) -> str:
    """The buffer of a materialised tensor."""
    assert tensor.storage.buffer is not None
    return tensor.storage.buffer
