"""Attention whose mask is known while compiling: without the mask, or causal, by the kernels made for that.

Libraries of models make their masks in the forward function, of positions that are packed, padded or causal;
what comes out is mostly "everything" or "what came before".  With a mask torch takes slower kernels, or none.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx
from torch.nn import functional

ATTENTION = functional.scaled_dot_product_attention
MASK, CAUSAL = 3, 5  # positions of its arguments

MOST_ELEMENTS = 1 << 24
"""Of a value that is computed while compiling."""

FUNCTIONS = frozenset(
    getattr(module, name)
    for module, names in {
        torch: "arange ones zeros full eye tril triu where diff cumsum logical_and logical_or logical_not "
        "scalar_tensor stack cat finfo ones_like zeros_like full_like",
        operator: "add sub mul neg invert and_ or_ eq ne lt le gt ge getitem",
    }.items()
    for name in names.split()
)
METHODS = frozenset(
    "unsqueeze squeeze expand expand_as view reshape to bool float int long type cumsum new_ones new_zeros "
    "new_full all any logical_and logical_or logical_not masked_fill tril triu transpose permute contiguous "
    "repeat eq ne lt le gt ge add sub mul clone flip unbind".split()
)
"""What masks are made by.  None of them writes to an argument or draws random numbers."""

ALIASING = frozenset(
    "unsqueeze squeeze expand expand_as view reshape to bool float int long type transpose permute "
    "contiguous unbind".split()
) | {operator.getitem}
"""Those of them that may give their argument's memory."""

READERS = frozenset(
    {ATTENTION, functional.embedding, torch.embedding, operator.matmul, torch.matmul}
)
"""Other functions that take positions and masks, and write to none."""


def drop_known_masks(graph: torch.fx.Graph) -> None:
    """Take masks that hide nothing, or just all later positions, from attention in a captured graph."""
    constants = _Constants(graph)
    for node in graph.find_nodes(op="call_function", target=ATTENTION):
        mask = node.kwargs.get("attn_mask", node.args[MASK] if len(node.args) > MASK else None)
        causal = node.kwargs.get(
            "is_causal", node.args[CAUSAL] if len(node.args) > CAUSAL else False
        )
        if not isinstance(mask, torch.fx.Node) or causal is not False:
            continue
        value = constants.value(mask)
        if value is None:
            continue
        visible = value if value.dtype == torch.bool else value == 0
        if visible.all():
            _replace(node, False)
        elif _is_causal(value, visible):
            _replace(node, True)


def _is_causal(value: torch.Tensor, visible: torch.Tensor) -> bool:
    """Whether a query sees just the keys up to its own position."""
    if visible.dim() < 2:
        return False
    rows, columns = visible.shape[-2:]
    if rows != columns or not bool((visible == visible.new_ones(rows, columns).tril()).all()):
        return False
    return value.dtype == torch.bool or bool((value[~visible] == -math.inf).all())


def _replace(node: torch.fx.Node, causal: bool) -> None:
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, node.args[MASK:], strict=False)) | node.kwargs
    node.args = node.args[:MASK]
    node.kwargs = {**given, "attn_mask": None, "is_causal": causal}


class _Constants:
    """Values that a graph computes of nothing but numbers, on the CPU, each once and when asked for."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._known: dict[torch.fx.Node, Any] = {}
        self._position = {node: position for position, node in enumerate(graph.nodes)}

    def value(self, node: torch.fx.Node) -> torch.Tensor | None:
        """What ``node`` always gives; None if that depends on inputs, chance or sizes, or is large."""
        order: set[torch.fx.Node] = set()
        pending = [node]
        while pending:
            current = pending.pop()
            if current in order:
                continue
            if not _is_pure(current) or not _is_only_read(current):
                return None
            order.add(current)
            pending.extend(current.all_input_nodes)
        for current in sorted(order, key=self._position.__getitem__):
            if current not in self._known:
                self._known[current] = self._compute(current)
        result = self._known[node]
        return result if isinstance(result, torch.Tensor) else None

    def _compute(self, node: torch.fx.Node) -> Any:
        arguments: Any = torch.fx.map_arg(_on_cpu(node.args), self._known.__getitem__)
        keywords: Any = torch.fx.map_arg(_on_cpu(node.kwargs), self._known.__getitem__)
        with torch.no_grad():
            if node.op == "call_method":
                return getattr(arguments[0], str(node.target))(*arguments[1:], **keywords)
            assert callable(node.target)
            return node.target(*arguments, **keywords)


def _is_only_read(node: torch.fx.Node) -> bool:
    """Whether nothing that takes ``node``, or a view of it, writes to it."""
    seen: set[torch.fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        for user in current.users:
            if user.op == "output" or user.target in READERS or user in seen:
                continue
            if not _is_pure(user):
                return False
            seen.add(user)
            if user.target in ALIASING:
                pending.append(user)
    return True


def _is_pure(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value", node.meta.get("val"))
    if isinstance(value, torch.Tensor) and not _is_small(value):
        return False
    if node.op == "call_method":
        return node.target in METHODS
    return node.op == "call_function" and node.target in FUNCTIONS and "out" not in node.kwargs


def _is_small(value: torch.Tensor) -> bool:
    return all(type(n) is int for n in value.shape) and value.numel() <= MOST_ELEMENTS


def _on_cpu(argument: Any) -> Any:
    """``argument`` with the CPU in place of every device."""
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    if isinstance(argument, tuple | list):
        return type(argument)(_on_cpu(a) for a in argument)
    if isinstance(argument, dict):
        return {key: _on_cpu(a) for key, a in argument.items()}
    return argument
