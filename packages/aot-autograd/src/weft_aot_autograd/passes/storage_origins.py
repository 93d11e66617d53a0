"""Which node's memory a value lies in, from the operators' schemas."""

from __future__ import annotations

import functools
import operator
from collections.abc import Set

import torch
import torch.fx

from .._torch import OpOverload

aten = torch.ops.aten

_UNDECLARED_VIEWS = frozenset(
    {
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)


def storage_origin(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose result owns the memory of ``node``; a view's is its base's."""
    while True:
        base = _base(node)
        if base is None:
            return node
        node = base


def is_view(node: torch.fx.Node) -> bool:
    """Whether the memory of ``node`` is that of its first argument."""
    return _base(node) is not None


def _base(node: torch.fx.Node) -> torch.fx.Node | None:
    source = node.args[0] if node.args else None
    if not isinstance(source, torch.fx.Node):
        return None
    if node.target is operator.getitem:
        return _base(source)
    if not isinstance(node.target, OpOverload):
        return None
    return source if _views_first_argument(node.target) else None


@functools.cache
def _views_first_argument(target: OpOverload) -> bool:
    """Whether the results of an operator are views of its first argument."""
    info = target._schema.arguments[0].alias_info
    return target in _UNDECLARED_VIEWS or (info is not None and not info.is_write)


def returned_origins(graph: torch.fx.Graph) -> Set[torch.fx.Node]:
    """What the graph returns, and the nodes that own the memory of this.

    Each returned tensor has memory of its own: these nodes may not be merged with others or left out.
    """
    (output,) = graph.find_nodes(op="output")
    returned = set(output.all_input_nodes)
    origins = {storage_origin(node) for node in returned}
    # One of several results: its operator makes the memory.
    several = {node.all_input_nodes[0] for node in origins if node.target is operator.getitem}
    return returned | origins | several
