"""The fake values of nodes: what passes read and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from weft_loop_ir._torch import OpOverload, is_view_operator


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
