"""Sums of gradients over the iterations of a loop: of a part of a tensor, only that part is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten


def accumulated(
    total: torch.Tensor, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]
) -> torch.Tensor:
    """``total`` plus the value of ``node``.

    Where that is zero but for a part, as the gradient of a row is, only the part of ``total`` changes.
    """
    if node.target is aten.add.Tensor and not node.kwargs and _has_part(node):
        left, right = node.args
        if isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node):
            return accumulated(accumulated(total, left, values), right, values)
    replaced = _PARTS.get(node.target)
    if replaced is not None and _is_zero(node.args[0]):
        take, put = replaced
        arguments: Any = torch.fx.map_arg(node.args[1:], values.__getitem__)
        source, *place = arguments
        part = take(total, *place) + source
        return put(total, part, *place)
    value: torch.Tensor = values[node]
    return total + value


def _has_part(node: Any) -> bool:
    if not isinstance(node, torch.fx.Node):
        return False
    if node.target is aten.add.Tensor and not node.kwargs:
        return any(map(_has_part, node.args))
    return node.target in _PARTS and _is_zero(node.args[0])


def _is_zero(node: Any) -> bool:
    """Whether every element of the node's tensor is zero."""
    if not isinstance(node, torch.fx.Node):
        return False
    if node.target in _ZEROS:
        return True
    position = _FILLED.get(node.target)
    return position is not None and bool(node.args[position] == 0)


# By the operator that puts a part into a tensor: what takes the part, and the operator itself.
_PARTS: dict[Any, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    aten.select_scatter.default: (aten.select.int, aten.select_scatter.default),
    aten.slice_scatter.default: (aten.slice.Tensor, aten.slice_scatter.default),
}

_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})

# By operator: the argument that is the value of every element.
_FILLED: dict[Any, int] = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
}
