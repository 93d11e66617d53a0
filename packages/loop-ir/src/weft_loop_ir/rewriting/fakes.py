"""What passes read and change: the fake values of nodes, and the values that nodes always have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate

from weft_loop_ir._torch import OpOverload, is_view_operator, must_keep, writes_argument


def is_static(node: Any) -> bool:
    """Whether ``node`` is a tensor's, of a size and strides that are numbers."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and all(
        isinstance(n, int) for n in (*value.shape, *value.stride())
    )


def is_view(node: torch.fx.Node) -> bool:
    """Whether ``node`` calls an operator that gives a view."""
    return isinstance(node.target, OpOverload) and is_view_operator(node.target)


def lies_like(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one size have the same strides, where these matter."""
    return all(
        n == 1 or a == b
        for n, a, b in zip(value.shape, value.stride(), other.stride(), strict=True)
    )


def restrided(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A fake tensor like ``value`` that lies as ``stride`` says."""
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)


def computed(node: torch.fx.Node) -> Any:
    """What ``node`` gives for the fake values that its arguments have now."""
    arguments = torch.fx.map_arg(node.args, lambda argument: argument.meta["val"])
    keywords = torch.fx.map_arg(node.kwargs, lambda argument: argument.meta["val"])
    first = next(n.meta["val"] for n in node.all_input_nodes)
    assert callable(node.target)
    with torch.no_grad(), first.fake_mode:
        return node.target(*arguments, **keywords)


def insert_call(
    before: torch.fx.Node, value: Any, target: Callable[..., Any], *arguments: Any, **keywords: Any
) -> torch.fx.Node:
    """A new node before ``before`` that gives ``value``."""
    graph = before.graph
    with graph.inserting_before(before):
        node = graph.call_function(target, arguments, keywords)
    node.meta.update({k: v for k, v in before.meta.items() if k == "stack_trace"})
    node.meta["val"] = value
    return node


def call_before(
    before: torch.fx.Node, target: Any, *arguments: Any, **keywords: Any
) -> torch.fx.Node:
    """A new node before ``before`` whose value is computed from those of its arguments."""
    node = insert_call(before, before.meta.get("val"), target, *arguments, **keywords)
    node.meta["val"] = computed(node)
    return node


def replace(node: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let ``new`` stand for ``node``, which goes."""
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def source_of(node: torch.fx.Node, position: int = 0) -> torch.fx.Node:
    """The argument of ``node`` at that position, which is a node."""
    source = node.args[position]
    assert isinstance(source, torch.fx.Node)
    return source


def ancestors(nodes: Iterable[object]) -> set[torch.fx.Node]:
    """The nodes among ``nodes`` and what they are computed from."""
    seen: set[torch.fx.Node] = set()
    pending = [node for node in nodes if isinstance(node, torch.fx.Node)]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes
    return seen


# -- constant values -----------------------------------------------------------------------------------


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
