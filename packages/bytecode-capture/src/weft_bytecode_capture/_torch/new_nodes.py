"""Appending calls to a graph that is captured: as torch.fx does, but for what new nodes do not need."""

from __future__ import annotations

from typing import Any

import torch.fx

_ARGUMENTS: Any = torch.fx.Node.args
_KEYWORDS: Any = torch.fx.Node.kwargs
"""Set past the node's own ``__setattr__``, which takes it out of the graph's tables and puts it back."""


def append_node(
    graph: torch.fx.Graph,
    names: dict[Any, str],
    kind: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.fx.Node:
    """A new node; ``names`` remembers, by what is called, the names that torch makes for calls of it.

    It gets its arguments afterwards: in those of a node that is being made torch looks for symbols.
    """
    name = names.get(target)
    if name is None:
        name = names[target] = graph._target_to_str(target)
    node = graph.create_node(kind, target, name=name)
    _ARGUMENTS.__set__(node, args)
    if kwargs:
        _KEYWORDS.__set__(node, kwargs)
    return node
