"""Which dimensions of a value are its rows: the first ones, together as many as a matrix has rows.

A value of shape ``(2, 31, 1000)`` whose rows are its first two dimensions is, in a block of rows, one of
shape ``(block, 1000)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import known_equal, size_hint

aten = torch.ops.aten

MATMULS = frozenset({aten.mm.default, aten.addmm.default})
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default})
SQUEEZES = frozenset(
    {aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default}
)
TRANSPOSED = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})
ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})

Size = int | torch.SymInt


@dataclass(frozen=True)
class Rows:
    """An operand is taken by rows: they are its first ``dims`` dimensions."""

    dims: int


@dataclass(frozen=True)
class Whole:
    """An operand is the same for all rows; its first ``dropped`` dimensions, of size 1, stand for these."""

    dropped: int = 0


Demand = Rows | Whole


def shape_of(node: torch.fx.Node) -> Sequence[Any]:
    """The shape of the node's tensor."""
    shape: Sequence[Any] = node.meta["val"].shape
    return shape


def is_tensor(node: object) -> bool:
    """Whether ``node`` computes one tensor."""
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def row_dims(shape: Sequence[Size], rows: Size) -> int | None:
    """How many of the first dimensions together are as many as there are ``rows``; None: no number."""
    count: Any = 1
    for dims, size in enumerate(shape, 1):
        count = count * size
        if known_equal(count, rows):
            return dims
    return None


def trail(shape: Sequence[Size], dims: int) -> tuple[Size, ...]:
    """What an element of a row-wise value has: the dimensions behind those of rows."""
    return tuple(shape[dims:])


def same_sizes(left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether both are equal for all values of symbols."""
    return len(left) == len(right) and all(map(known_equal, left, right))


def columns_hint(node: torch.fx.Node, dims: int) -> int:
    """How many elements a row of the node has, for a symbolic size as it is now."""
    return math.prod(size_hint(n) for n in trail(shape_of(node), dims))


def broadcast_demand(operand: Sequence[Size], result: Sequence[Size], dims: int) -> Demand | None:
    """How an operand is taken that is broadcast to ``result``, of whose dimensions ``dims`` are rows."""
    before = len(operand) - (len(result) - dims)  # of its dimensions, those that meet the rows'
    if before <= 0:
        return Whole()
    if before == dims and same_sizes(operand[:dims], result[:dims]):
        return Rows(dims)
    if all(known_equal(n, 1) for n in operand[:before]):
        return Whole(before)
    return None
