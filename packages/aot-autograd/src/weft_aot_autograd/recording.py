"""The nodes of what runs on fake tensors: which node computes a tensor, and a node for each operator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.fx
from weft_functionalize import DispatchMode, NumberNodes, TensorMap, append_call

from ._torch import OpOverload
from .unsupported import Unsupported

aten = torch.ops.aten

QUESTIONS = frozenset(
    {
        aten.is_pinned.default,
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_numel.default,
        aten.sym_storage_offset.default,
    }
)
"""Operators that only ask about a tensor: they are answered, and leave no node."""

COMPUTED_IN_BACKWARD = "computed_in_backward"
"""Set in the ``meta`` of a node that a joint graph has for backward alone, which computes it."""

_PROVENANCE = ("stack_trace", "nn_module_stack", COMPUTED_IN_BACKWARD)


class NodeRecorder(DispatchMode):
    """A dispatch mode on top of a fake mode that appends nodes to ``graph``.

    ``provenance`` is the node whose stack trace new nodes get.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.provenance: torch.fx.Node | None = None
        self.numbers = NumberNodes(graph)
        self._nodes: TensorMap[torch.fx.Node] = TensorMap()

    def refuse(self, kind: str, context: str) -> NoReturn:
        """Raise for what can't be recorded."""
        raise Unsupported(kind, context)

    def know(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Let ``node`` stand for ``tensor``."""
        self._nodes[tensor] = node

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that computes ``tensor``; a stranger is refused."""
        node = self._nodes.get(tensor)
        if node is None:
            self.refuse("tensor that the graph did not compute", str(tensor))
        return node

    def nodes_in(self, value: Any) -> Any:
        """Arguments with nodes in place of tensors and symbolic numbers."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            kind = list if isinstance(value, torch.Size) else type(value)
            return kind(self.nodes_in(item) for item in value)
        if isinstance(value, dict):
            return {key: self.nodes_in(item) for key, item in value.items()}
        return self.numbers.node_of(value)

    def record(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        """Append a call, and an item for each tensor of a result of several; a check has no result."""
        node = self.append(func, self.nodes_in(args), self.nodes_in(kwargs), result)
        if isinstance(result, torch.Tensor):
            self.know(result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self.know(item, self.append(operator.getitem, (node, index), {}, item))
        elif func._schema.returns:
            self.refuse("operator that gives no tensor", str(func))

    def append(
        self, target: Callable[..., Any], args: Any, kwargs: Any, value: Any
    ) -> torch.fx.Node:
        """Append one call of ``target`` on nodes, whose result is ``value``."""
        node = append_call(self.graph, target, args, kwargs)
        node.meta["val"] = value
        if self.provenance is not None:
            for key in _PROVENANCE:
                if key in self.provenance.meta:
                    node.meta[key] = self.provenance.meta[key]
        self.numbers.note_result(node)
        return node
