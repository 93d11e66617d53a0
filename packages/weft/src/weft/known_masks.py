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
from weft_loop_ir import ConstantValues

ATTENTION = functional.scaled_dot_product_attention
ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Those that may be given by position."""

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


def drop_known_masks(graph_module: torch.fx.GraphModule) -> None:
    """Take masks that hide nothing, or just all later positions, from attention in a captured graph.

    Code that the module has by now stays as it was: it computes the same, and takes long to print.
    """
    graph = graph_module.graph
    known = ConstantValues(graph, _is_computable)
    for node in graph.find_nodes(op="call_function", target=ATTENTION):
        given = attention_arguments(node)
        mask, causal = given.get("attn_mask"), given.get("is_causal", False)
        if not isinstance(mask, torch.fx.Node) or causal is not False:
            continue
        value = known.tensor(mask)
        if value is None:
            continue
        visible = value if value.dtype == torch.bool else value == 0
        hides_nothing = bool(visible.all())
        if hides_nothing or _is_causal(value, visible):
            node.args = ()
            node.kwargs = given | {"attn_mask": None, "is_causal": not hides_nothing}


def attention_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments that a call of attention is given, by name."""
    return dict(zip(ATTENTION_ARGUMENTS, node.args, strict=False)) | node.kwargs


def _is_causal(value: torch.Tensor, visible: torch.Tensor) -> bool:
    """Whether a query sees just the keys up to its own position."""
    if visible.dim() < 2:
        return False
    rows, columns = visible.shape[-2:]
    if rows != columns or not bool((visible == visible.new_ones(rows, columns).tril()).all()):
        return False
    return value.dtype == torch.bool or bool((value[~visible] == -math.inf).all())


def _is_computable(node: torch.fx.Node) -> bool:
    return _is_pure(node) and _is_only_read(node)


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
    if isinstance(value, torch.Tensor) and not ConstantValues.is_small(value):
        return False
    if node.op == "call_method":
        return node.target in METHODS
    return node.op == "call_function" and node.target in FUNCTIONS and "out" not in node.kwargs
