"""Convolutions without their bias, which is added in the kernel that reads the result.

cuDNN's convolution is followed by a kernel of torch's that adds the bias in memory; added in a fused kernel
it is read and rounded the same.
"""

from __future__ import annotations

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import insert_call

aten = torch.ops.aten


def separate_biases(graph: torch.fx.Graph) -> None:
    """Add the biases of convolutions by operators of their own."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        bias = node.args[2]
        value = node.meta["val"]
        if not isinstance(bias, torch.fx.Node) or not value.dtype.is_floating_point:
            continue
        node.update_arg(2, None)
        size = [-1] + [1] * (value.dim() - 2)
        after = node.next
        with value.fake_mode:
            column_value = aten.view.default(bias.meta["val"], size)
        column = insert_call(after, column_value, aten.view.default, bias, size)
        total = insert_call(after, value, aten.add.Tensor, node, column)
        node.replace_all_uses_with(
            total, delete_user_cb=lambda user, total=total: user is not total
        )
