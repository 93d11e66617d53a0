"""What nodes of a graph always give, computed while compiling from nothing but numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate

from weft_loop_ir._torch import OpOverload, must_keep, writes_argument

MAX_ELEMENTS = 1 << 24
"""Of a value that is computed while compiling."""


def is_functional_operator(node: torch.fx.Node) -> bool:
    """Whether ``node`` calls an operator that gives one small tensor, by no chance, and writes to none."""
    target, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    if must_keep(target) or writes_argument(target) or not isinstance(value, torch.Tensor):
        return False
    return ConstantValues.is_small(value)


class ConstantValues:
    """The values of nodes that depend on no input, on the CPU, each computed once and when asked for.

    ``is_computable`` says of a call of a function or method whether it may be done while compiling: what it
    gives is to follow from its arguments alone, and nobody may have written to that.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        is_computable: Callable[[torch.fx.Node], bool] = is_functional_operator,
    ) -> None:
        self._is_computable = is_computable
        self._values: dict[torch.fx.Node, Any] = {}
        self._position = {node: position for position, node in enumerate(graph.nodes)}

    @staticmethod
    def is_small(value: torch.Tensor) -> bool:
        """Whether a value of such a size, and of no symbolic one, may be computed while compiling."""
        return all(type(n) is int for n in value.shape) and value.numel() <= MAX_ELEMENTS

    def tensor(self, node: torch.fx.Node) -> torch.Tensor | None:
        """What ``node`` always gives; None if that depends on inputs, chance or sizes, or is large."""
        order: set[torch.fx.Node] = set()
        pending = [node]
        while pending:
            current = pending.pop()
            if current in order:
                continue
            if current not in self._position or not self._is_computable(current):
                return None
            order.add(current)
            pending.extend(current.all_input_nodes)
        for current in sorted(order, key=self._position.__getitem__):
            if current not in self._values:
                self._values[current] = self._compute(current)
        result = self._values[node]
        return result if isinstance(result, torch.Tensor) else None

    def number(self, argument: Any) -> float | None:
        """``argument`` as one number: a number, or a node whose elements are all the same."""
        if isinstance(argument, bool | int | float):
            return float(argument)
        value = self.tensor(argument) if isinstance(argument, torch.fx.Node) else None
        if value is None or value.numel() == 0 or value.is_complex():
            return None
        first = value.flatten()[0]
        return float(first) if bool((value == first).all()) else None

    @torch.no_grad()
    def _compute(self, node: torch.fx.Node) -> Any:
        def value(argument: Any) -> Any:
            """What the argument is on the CPU."""
            if isinstance(argument, torch.device):
                return torch.device("cpu")
            return self._values[argument] if isinstance(argument, torch.fx.Node) else argument

        arguments: Any = map_aggregate(node.args, value)
        keywords: Any = map_aggregate(node.kwargs, value)
        if node.op == "call_method":
            return getattr(arguments[0], str(node.target))(*arguments[1:], **keywords)
        assert callable(node.target)
        return node.target(*arguments, **keywords)
