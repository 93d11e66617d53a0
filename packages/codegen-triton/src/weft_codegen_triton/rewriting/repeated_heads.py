"""Attention that is given each head of keys and values several times: it reads the heads themselves.

Models write ``keys[:, :, None].expand(b, h, g, n, d).reshape(b, h * g, n, d)`` for groups of queries that
share a head, which copies a whole cache for each token.  The library's kernels know such groups.
"""

from __future__ import annotations

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import insert_call, is_static

aten = torch.ops.aten

GROUPED = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""Operators whose keys and values may have fewer heads than the queries, a divisor of them."""

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def share_heads(graph: torch.fx.Graph) -> None:
    """Give those operators of ``graph`` the heads that were repeated for them.

    Not where backward reads the repeated ones too, and is to give gradients of them.
    """
    for target in GROUPED:
        for node in graph.find_nodes(op="call_function", target=target):
            copies = node.args[1:3]
            if not all(isinstance(c, torch.fx.Node) and set(c.users) == {node} for c in copies):
                continue
            expanded = [_expanded(c) for c in copies if isinstance(c, torch.fx.Node)]
            groups = {e.meta["val"].size(2) for e in expanded if e is not None}
            if None in expanded or len(groups) != 1:
                continue
            for position, heads in enumerate(expanded, 1):
                assert heads is not None
                with heads.meta["val"].fake_mode:
                    value = aten.select.int(heads.meta["val"], 2, 0)
                node.update_arg(position, insert_call(node, value, aten.select.int, heads, 2, 0))


def _expanded(node: torch.fx.Node) -> torch.fx.Node | None:
    """What ``node`` is a copy of: heads repeated without memory, ``[b, h, g, n, d]``; None for others."""
    if node.target not in VIEWS:
        return None
    copy = node.args[0]
    if not isinstance(copy, torch.fx.Node) or copy.target is not aten.clone.default:
        return None
    source = copy.args[0]
    if not isinstance(source, torch.fx.Node) or not is_static(source) or not is_static(node):
        return None
    value, whole = source.meta["val"], node.meta["val"]
    if value.dim() != 5 or value.stride(2) != 0 or value.stride(4) != 1:
        return None
    b, h, g, n, d = value.shape
    return source if tuple(whole.shape) == (b, h * g, n, d) else None
