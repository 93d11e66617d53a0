"""Appending calls to a graph that is recorded: as torch.fx does, but for what new nodes do not need."""

from __future__ import annotations

from typing import Any

import torch.fx

from ._torch import OpOverload, base_name

_ARGUMENTS: Any = torch.fx.Node.args
_KEYWORDS: Any = torch.fx.Node.kwargs
"""Set past the node's own ``__setattr__``, which takes it out of the graph's tables and puts it back."""


def append_call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A new node that calls ``target``.

    It gets its arguments afterwards: in those of a node that is being made torch looks for symbols.
    """
    name = base_name(target) if isinstance(target, OpOverload) else None
    node = graph.create_node("call_function", target, name=name)
    _ARGUMENTS.__set__(node, args)
    if kwargs:
        _KEYWORDS.__set__(node, kwargs)
    return node
