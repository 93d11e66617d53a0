"""Inserts ATen nodes into a graph, computing each one's fake value."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from .._torch import known_equal
from ..symbolic_numbers import NumberNodes, with_numbers

aten = torch.ops.aten

_PROVENANCE = ("stack_trace", "nn_module_stack", "source_node")
GRADIENTS_DISABLED = "gradients_disabled"
"""Key of a node's metadata: present where the program runs it with gradients disabled."""


def fake_value(node: torch.fx.Node) -> Any:
    """What ``node`` computes, from its arguments' fake values; needs the fake mode to be active."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    assert callable(node.target)
    return node.target(*args, **kwargs)


SCATTERS = frozenset(
    {
        aten.select_scatter.default,
        aten.slice_scatter.default,
        aten.diagonal_scatter.default,
        aten.as_strided_scatter.default,
    }
)
"""Operators that give their first argument with the second one in the place that the others say.

Their fakes may lie in their memory as the operand does in its: a graph's begin at the start.
"""


def _at_the_start(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if known_equal(tensor.storage_offset(), 0) else tensor.clone()


class Emitter:
    """Inserts nodes before the node that :meth:`before` names, with that node's provenance."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self._numbers = NumberNodes(graph)
        self._anchor: torch.fx.Node | None = None
        self._mode: tuple[torch.fx.Node | None] | None = None  # None: as the anchor's

    def before(self, anchor: torch.fx.Node) -> Emitter:
        self._anchor = anchor
        return self

    @contextlib.contextmanager
    def in_mode_of(self, node: torch.fx.Node | None) -> Iterator[None]:
        """What is inserted meanwhile runs in the gradient mode of ``node``: enabled, if that is None."""
        before, self._mode = self._mode, (node,)
        try:
            yield
        finally:
            self._mode = before

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Insert ``target(*args, **kwargs)``."""
        assert self._anchor is not None
        value_args, value_kwargs = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        if target in SCATTERS:
            value_args = (_at_the_start(value_args[0]), *value_args[1:])
        value = target(*value_args, **value_kwargs)  # before the node, so that an error leaves none
        args = with_numbers(args, self._numbers.node_of)
        kwargs = with_numbers(kwargs, self._numbers.node_of)
        with self.graph.inserting_before(self._anchor):
            node = self.graph.call_function(target, args, kwargs)
        for key in _PROVENANCE:
            if key in self._anchor.meta:
                node.meta[key] = self._anchor.meta[key]
        (source,) = self._mode or (self._anchor,)
        if source is not None and GRADIENTS_DISABLED in source.meta:
            node.meta[GRADIENTS_DISABLED] = True
        node.meta["val"] = value
        return node

    def item(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        """Insert ``node[index]``."""
        return self.call(operator.getitem, node, index)
