"""Finds gradients that are linear in the gradient of a loss, a number: they are computed for a gradient of 1.

Backward then only multiplies them, and the matrix that the loss was computed from is not needed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from .rows import SQUEEZES, TRANSPOSED, VIEWS, ZEROS

aten = torch.ops.aten
Node = torch.fx.Node

ANY = -1
"""The degree of zeros: they are of any."""

_SAME = frozenset(
    {
        *(VIEWS | SQUEEZES | TRANSPOSED),
        *(aten.neg.default, aten.expand.default, aten._to_copy.default, aten.clone.default),
        *(aten.alias.default, aten.slice.Tensor, aten.select.int, aten.sum.default),
        *(aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.gather.default),
        aten.detach.default,
    }
)
_ADDED = frozenset({aten.add.Tensor, aten.sub.Tensor})
_MULTIPLIED = frozenset(
    {aten.mul.Tensor, aten.mul.Scalar, aten.mm.default, aten.bmm.default, aten.div.Scalar}
)
_FILLED: Mapping[Any, int] = {
    aten.scalar_tensor.default: 0,
    aten.full.default: 1,
    aten.full_like.default: 1,
}


def degrees(tangent: Node, nodes: Sequence[Node]) -> Mapping[Node, int | None]:
    """The degree of ``nodes``, in a graph's order, in ``tangent``: 0, 1 or :data:`ANY`; None: of no degree.

    What is not among them does not depend on the tangent.
    """
    found: dict[Node, int | None] = {tangent: 1}
    for node in nodes:
        given = [_degree_of(a, found) for a in node.args]
        found[node] = None if None in given else _degree(node, [g for g in given if g is not None])
    return found


def _degree_of(argument: Any, found: Mapping[Node, int | None]) -> int | None:
    if not isinstance(argument, Node):
        return 0
    return found[argument] if argument in found else (ANY if is_zero(argument) else 0)


def is_zero(node: Node) -> bool:
    """Whether the node gives zeros."""
    if node.target in ZEROS:
        return True
    position = _FILLED.get(node.target)
    return position is not None and bool(node.args[position] == 0)


def _degree(node: Node, given: Sequence[int]) -> int | None:
    """The degree of a node whose arguments have those that are ``given``."""
    target = node.target
    if target in _SAME:
        value = node.meta["val"]
        return given[0] if value.dtype.is_floating_point else None
    if target in _MULTIPLIED:
        return _product(given)
    if target is aten.div.Tensor:
        return given[0] if given[1] == 0 else None
    if target in _ADDED:
        return _common(given[:2])
    if target is aten.where.self:
        return _common(given[1:]) if given[0] == 0 else None
    if target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        is_cleared = node.args[2] == 0 or given[2] == ANY
        return given[0] if given[1] == 0 and is_cleared else None
    if target is aten.scatter_add.default:
        return _common([given[0], given[3]])
    if target is aten.constant_pad_nd.default:
        return given[0] if node.args[2:] in ((), (0,), (0.0,)) else None
    if target is aten.slice_scatter.default:
        return _common(given[:2])
    if target in ZEROS:
        return ANY
    return None


def _product(given: Sequence[int]) -> int | None:
    if ANY in given:
        return ANY
    total = sum(given)
    return total if total <= 1 else None


def _common(given: Sequence[int]) -> int | None:
    known = {g for g in given if g != ANY}
    if len(known) > 1:
        return None
    return known.pop() if known else ANY
