"""Tensors that are joined and then turned: each is written where it belongs in the turned one.

Gradients of queries, keys and values, each ``[batch, heads, length, width]``, are stacked, turned to
``[batch, length, 3, heads, width]`` and copied for the matmul behind: everything would be written twice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import computed, insert_call

aten = torch.ops.aten

Node = torch.fx.Node

JOINS = (aten.stack.default, aten.cat.default)


def join_turned(graph: torch.fx.Graph) -> None:
    """Turn what is joined instead of the result, where nothing else reads that and a copy of it is made."""
    for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
        turned: Any = copy.args[0]
        if not copy.meta["val"].is_contiguous() or not _is_only_for(turned, copy):
            continue
        joined: Any = turned.args[0] if turned.target is aten.permute.default else None
        if _is_only_for(joined, turned) and joined.target in JOINS and _is_of_one_rank(joined):
            copy.replace_all_uses_with(_joined_turned(copy, turned, joined))
            for node in (copy, turned, joined):
                graph.erase_node(node)


def _is_only_for(node: Any, user: Node) -> bool:
    return isinstance(node, Node) and list(node.users) == [user]


def _is_of_one_rank(joined: Any) -> bool:
    """Whether all operands have dims; ``cat`` takes an empty one of another rank too."""
    return len({tensor.meta["val"].dim() for tensor in joined.args[0]}) == 1


def _joined_turned(copy: Node, turned: Any, joined: Any) -> Node:
    """What ``copy`` gives, from the operands of ``joined``."""
    rank = joined.meta["val"].dim()
    order = [dim % rank for dim in turned.args[1]]
    tensors, *dims = joined.args
    joins_at = (dims or [joined.kwargs.get("dim", 0)])[0] % rank
    own = order
    if joined.target is aten.stack.default:
        own = [dim - (dim > joins_at) for dim in order if dim != joins_at]
    operands = []
    for tensor in tensors:
        operand = insert_call(copy, tensor.meta["val"], aten.permute.default, tensor, own)
        operand.meta["val"] = computed(operand)
        operands.append(operand)
    value = copy.meta["val"]
    return insert_call(copy, value, joined.target, operands, order.index(joins_at))
