"""Products of blocks of rows that are added up in float32: by the matmul itself.

What sums over all rows of a matrix that is computed in blocks, as the gradient of a head's weight, is a
product of 16 bits for each block, which is widened and added to those before.  A library's matmul holds its
result in float32 anyway: it adds it where the sum lies, and the product is neither rounded nor stored.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from weft_loop_ir.lowering.row_blocks import ROW_BLOCK
from weft_loop_ir.rewriting.fakes import insert_call, is_static, replace, source_of

from weft_codegen_triton.rewriting.aligned_matmuls import UNIT

aten = torch.ops.aten

Node = torch.fx.Node


def sum_products_wide(graph: torch.fx.Graph) -> None:
    """Put matmuls that add in float32 in the place of those sums in ``graph``."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if ROW_BLOCK not in node.meta or len(node.args) != 2 or node.kwargs:
            continue
        total, widened = node.args
        product = _product(widened, node)
        if product is None or not _lie_alike(total, node):
            continue
        assert isinstance(total, Node)
        first = _product(total, node)
        if first is not None:
            total = _put(total, aten.mm.dtype, *first.args, torch.float32)
        _put(node, aten.addmm.dtype, total, *product.args, torch.float32)
        for unread in (widened, first, product):
            if unread is not None:
                graph.erase_node(unread)


def _product(widened: Any, reader: Node) -> Node | None:
    """The matmul on a GPU of which ``widened``, that ``reader`` alone reads, is the result in float32."""
    if not isinstance(widened, Node) or widened.target is not aten._to_copy.default:
        return None
    product, value = source_of(widened), widened.meta["val"]
    is_read_alone = [*widened.users] == [reader] and [*product.users] == [widened]
    if product.target is not aten.mm.default or not is_read_alone or ROW_BLOCK not in widened.meta:
        return None
    if not all(map(is_static, (product, *product.args))) or value.dtype != torch.float32:
        return None
    left, right = (source_of(product, k).meta["val"] for k in range(2))
    is_aligned = all(n % UNIT == 0 for n in (*left.shape, *right.shape))
    is_on_gpu = left.device.type == "cuda" and value.device == left.device
    return product if left.itemsize == 2 and is_aligned and is_on_gpu else None


def _lie_alike(total: Any, node: Node) -> bool:
    """Whether ``total`` is a sum in float32 of the size of ``node``."""
    if not isinstance(total, Node) or not is_static(total):
        return False
    value, result = total.meta["val"], node.meta["val"]
    return bool(value.dtype == result.dtype == torch.float32 and value.shape == result.shape)


def _put(node: Node, target: Any, *arguments: Any) -> Node:
    """A call of ``target`` in the place of ``node``, in its block."""
    result = insert_call(node, node.meta["val"], target, *arguments)
    result.meta[ROW_BLOCK] = node.meta[ROW_BLOCK]
    replace(node, result)
    return result
