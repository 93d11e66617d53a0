"""Convolutions without their bias, which is added in the kernel that reads the result.

cuDNN's convolution is followed by a kernel of torch's that adds the bias in memory; added in a fused kernel
it is read and rounded the same.  So is the gradient of a bias, a sum that torch's own kernel makes.
"""

from __future__ import annotations

import operator

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


def sum_bias_gradients(graph: torch.fx.Graph) -> None:
    """Have the gradients of convolutions' biases made by sums of their own."""
    target = aten.convolution_backward.default
    for node in graph.find_nodes(op="call_function", target=target):
        gradient, mask = node.args[0], list(node.args[10])
        users = [u for u in node.users if u.target is operator.getitem and u.args[1] == 2]
        if not mask[2] or not users or not isinstance(gradient, torch.fx.Node):
            continue
        value, sums = gradient.meta["val"], users[0].meta["val"]
        if value.dtype != sums.dtype:
            continue
        # not computed here, where autocast may be on
        dims = [0, *range(2, value.dim())]
        total = insert_call(node, sums, aten.sum.dim_IntList, gradient, dims)
        for user in users:
            user.replace_all_uses_with(total)
            graph.erase_node(user)
        node.update_arg(10, [*mask[:2], False])
        node.meta["val"] = (*node.meta["val"][:2], None)
        if not node.users:
            graph.erase_node(node)
