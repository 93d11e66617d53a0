"""Memory that backward formulas write to: a write gives the whole a new version, views are taken from that.

A formula may fill memory that it has made part by part, or hold it in several tensors.  Memory that a
graph is given is never written by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import TensorMap, known_equal, size_hint, storage_identity

aten = torch.ops.aten

Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any]
"""Size, stride and offset of a tensor in its storage, in elements."""


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()


def same_geometry(left: Geometry, right: Geometry) -> bool:
    """Whether two tensors of one storage are the same elements, for all sizes."""
    first, second = (*left[0], *left[1], left[2]), (*right[0], *right[1], right[2])
    return len(first) == len(second) and all(map(known_equal, first, second))


@dataclass
class _Memory:
    """One storage: the tensor that was known first, its geometry, and what computes it now."""

    node: torch.fx.Node
    geometry: Geometry
    is_given: bool
    version: int = 0


class WrittenMemory:
    """The storages of a recorder's tensors, and how often each was written to."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}
        self._seen: TensorMap[int] = TensorMap()  # the version at which a tensor's node was right

    def know(self, tensor: torch.Tensor, node: torch.fx.Node, *, is_given: bool) -> None:
        """``node`` computes ``tensor``, as it is now; ``is_given``: it is the graph's input."""
        storage = storage_identity(tensor)
        known = self._memory.get(storage)
        if known is None:
            known = self._memory[storage] = _Memory(node, geometry_of(tensor), is_given)
        self._seen[tensor] = known.version

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether the graph made the memory, and the tensor known first is all of it."""
        known = self._memory.get(storage_identity(tensor))
        if known is None or known.is_given:
            return False
        size, stride, offset = known.geometry
        if any(known_equal(n, 0) for n in size):  # strides of no elements say nothing
            return True
        dense = 1
        for n, step in sorted(zip(size, stride, strict=True), key=lambda pair: size_hint(pair[1])):
            if not (known_equal(n, 1) or known_equal(step, dense)):
                return False
            dense = dense * n
        return known_equal(offset, 0)

    def current(self, tensor: torch.Tensor) -> tuple[torch.fx.Node, Geometry] | None:
        """What computes the memory in which ``tensor`` has become another; None if its own node is right."""
        known = self._memory.get(storage_identity(tensor))
        if known is None or self._seen.get(tensor) in (None, known.version):
            return None
        return known.node, known.geometry

    def write(self, tensor: torch.Tensor, whole: torch.fx.Node) -> None:
        """``whole`` computes the memory from now on, after a write to ``tensor``."""
        known = self._memory[storage_identity(tensor)]
        known.node = whole
        known.version += 1
        self._seen[tensor] = known.version

    def whole(self, tensor: torch.Tensor) -> tuple[torch.fx.Node, Geometry]:
        """What computes the memory of ``tensor``, and its geometry."""
        known = self._memory[storage_identity(tensor)]
        return known.node, known.geometry
