"""Computes equal pure expressions once."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from weft_functionalize import data_dependent_sizes

from ..recording import COMPUTED_IN_BACKWARD
from .dead_code import is_impure
from .storage_origins import returned_origins


def eliminate_common_subexpressions(graph: torch.fx.Graph) -> int:
    """Replace each pure node by an earlier one with the same operator and arguments.

    Values that the graph returns are left alone: two outputs are two tensors.  So is memory without values.
    Two sizes that depend on data are two symbols, which assertions may relate: these stay too; and what
    backward is to compute is not what forward has computed.
    """
    returned = returned_origins(graph)
    seen: dict[Any, torch.fx.Node] = {}
    removed = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or is_impure(node):
            continue
        sizes = tuple(sorted(map(str, data_dependent_sizes(node.meta.get("val")))))
        is_backwards = COMPUTED_IN_BACKWARD in node.meta
        key = (node.target, hashable(node.args), hashable(node.kwargs), sizes, is_backwards)
        try:
            first = seen.setdefault(key, node)
        except TypeError:
            continue  # an argument that is not hashable
        if first is not node and node not in returned:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            removed += 1
    return removed


def hashable(value: Any) -> Any:
    """A hashable form of an argument in which 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, hashable(item)) for name, item in value.items()))
    if isinstance(value, slice):
        return ("slice", hashable(value.start), hashable(value.stop), hashable(value.step))
    if isinstance(value, (bool, int, float, complex)):
        return (type(value).__name__, repr(value))
    return value
