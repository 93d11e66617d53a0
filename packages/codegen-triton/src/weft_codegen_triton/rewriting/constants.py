"""Values that a graph computes of nothing but numbers: position ranges, masks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from weft_codegen_triton.rewriting.fakes import is_static

MOST_ELEMENTS = 1 << 24
"""Of a value that is computed while compiling."""


class Constants:
    """The constant values of a graph, computed on the CPU when they are asked for, each once."""

    def __init__(self) -> None:
        self._known: dict[torch.fx.Node, torch.Tensor | None] = {}

    def value(self, node: torch.fx.Node) -> torch.Tensor | None:
        """What ``node`` always gives; None if that depends on inputs, chance or sizes, or is large."""
        order: list[torch.fx.Node] = []
        pending = [node]
        while pending:
            current = pending.pop()
            if current in self._known:
                continue
            if not _may_be_constant(current):
                self._known[current] = None
                continue
            order.append(current)
            pending.extend(current.all_input_nodes)
        for current in sorted(order):
            if current not in self._known:
                self._known[current] = self._compute(current)
        return self._known[node]

    def _compute(self, node: torch.fx.Node) -> torch.Tensor | None:
        if any(self._known[operand] is None for operand in node.all_input_nodes):
            return None
        arguments = torch.fx.map_arg(node.args, self._known.__getitem__)
        keywords = torch.fx.map_arg(node.kwargs, self._known.__getitem__)
        if "device" in node.kwargs:
            keywords = {**keywords, "device": torch.device("cpu")}
        with torch.no_grad():
            result: Any = node.target(*arguments, **keywords)  # type: ignore[operator]
        return result if isinstance(result, torch.Tensor) else None


def _may_be_constant(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or not is_static(node):
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not is_random and math.prod(node.meta["val"].shape) <= MOST_ELEMENTS
