"""What is changed in a graph before it is lowered, for the sake of the GPU's libraries.

A pass changes where values lie (the device and the strides of a node's fake value, which lowering follows) or
replaces nodes.  Results keep their strides, and every operator is rounded as before.  Only random numbers
become others.

What is changed operator by operator is in a table of rules here: for each the operators that it is about, and
a function of a node that calls one of them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from weft_loop_ir import convolve_channels_last
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_static, replace, source_of

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.rewriting.aligned_convolutions import align_convolutions
from weft_codegen_triton.rewriting.aligned_matmuls import UNIT, align_matmuls, saved_by_aligning
from weft_codegen_triton.rewriting.few_rows import sum_few_rows
from weft_codegen_triton.rewriting.patch_convolutions import multiply_patches
from weft_codegen_triton.rewriting.random_numbers import draw_in_kernels
from weft_codegen_triton.rewriting.scalars import compute_side_by_side, move_scalars
from weft_codegen_triton.rewriting.sent_tensors import send_operands
from weft_codegen_triton.rewriting.small_tensors import move_small_tensors
from weft_codegen_triton.rewriting.sparse_sums import sum_sparse_rows
from weft_codegen_triton.rewriting.wide_sums import sum_products_wide

aten = torch.ops.aten

Node = torch.fx.Node
Rule = Callable[[Node], None]


LONGEST_BAND = 16
"""Pixels of a kernel of one channel by itself, in one line: cuDNN has none for longer ones on channels-last
images, and makes a call for each channel."""


def rewrite(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Apply every pass to ``graph``, a functional ATen graph with fake values, in place."""
    if not compute_side_by_side(graph):
        move_scalars(graph)
        move_small_tensors(graph)
    send_operands(graph)
    _apply(graph, _join_turned, aten.clone.default)
    _apply(graph, _share_heads, *GROUPED)
    draw_in_kernels(graph)
    sum_few_rows(graph, gpu)
    sum_sparse_rows(graph, gpu)
    _apply(graph, _widen_small_sum, *SUMS)
    _apply(graph, functools.partial(_fold_batch, gpu), aten.bmm.default)
    _apply(graph, _separate_bias, aten.convolution.default)
    _apply(graph, _sum_bias_gradient, aten.convolution_backward.default)
    multiply_patches(graph)
    sum_products_wide(graph)
    align_matmuls(graph, gpu)
    align_convolutions(graph, gpu)
    convolve_channels_last(graph, longest_band=LONGEST_BAND)
    graph.lint()


def _apply(graph: torch.fx.Graph, rule: Rule, *targets: Any) -> None:
    """Apply ``rule`` to every node that calls one of ``targets``."""
    for target in targets:
        for node in graph.find_nodes(op="call_function", target=target):
            rule(node)


# -- tensors that are joined and then turned ---------------------------------------------------------------

JOINS = (aten.stack.default, aten.cat.default)


def _join_turned(copy: Node) -> None:
    """Turn what is joined instead of the result, where nothing else reads that and ``copy`` is made of it.

    Gradients of queries, keys and values, each ``[batch, heads, length, width]``, are stacked, turned to
    ``[batch, length, 3, heads, width]`` and copied for the matmul behind: everything would be written twice.
    """
    turned: Any = copy.args[0]
    if not copy.meta["val"].is_contiguous() or not _is_only_for(turned, copy):
        return
    joined: Any = turned.args[0] if turned.target is aten.permute.default else None
    if _is_only_for(joined, turned) and joined.target in JOINS and _is_of_one_rank(joined):
        replace(copy, _joined_turned(copy, turned, joined))
        for node in (turned, joined):
            node.graph.erase_node(node)


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
    operands = [call_before(copy, aten.permute.default, tensor, own) for tensor in tensors]
    return insert_call(copy, copy.meta["val"], joined.target, operands, order.index(joins_at))


# -- attention that is given each head of keys and values several times ------------------------------------

GROUPED = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""Operators whose keys and values may have fewer heads than the queries, a divisor of them."""

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def _share_heads(node: Node) -> None:
    """Give ``node`` the heads that were repeated for it.

    Models write ``keys[:, :, None].expand(b, h, g, n, d).reshape(b, h * g, n, d)`` for groups of queries that
    share a head, which copies a whole cache for each token.  The library's kernels know such groups.  Not
    where backward reads the repeated ones too, and is to give gradients of them.
    """
    copies = node.args[1:3]
    if not all(isinstance(c, Node) and set(c.users) == {node} for c in copies):
        return
    expanded = [_expanded(c) for c in copies if isinstance(c, Node)]
    groups = {e.meta["val"].size(2) for e in expanded if e is not None}
    if None in expanded or len(groups) != 1:
        return
    for position, heads in enumerate(expanded, 1):
        node.update_arg(position, call_before(node, aten.select.int, heads, 2, 0))


def _expanded(node: Node) -> Node | None:
    """What ``node`` is a copy of: heads repeated without memory, ``[b, h, g, n, d]``; None for others."""
    if node.target not in VIEWS:
        return None
    copy = node.args[0]
    if not isinstance(copy, Node) or copy.target is not aten.clone.default:
        return None
    source = copy.args[0]
    if not isinstance(source, Node) or not is_static(source) or not is_static(node):
        return None
    value, whole = source.meta["val"], node.meta["val"]
    if value.dim() != 5 or value.stride(2) != 0 or value.stride(4) != 1:
        return None
    b, h, g, n, d = value.shape
    return source if tuple(whole.shape) == (b, h * g, n, d) else None


# -- sums at indexed places of dtypes that the hardware doesn't add atomically -----------------------------

SUMS: dict[Any, tuple[int, int]] = {
    aten.scatter_add.default: (0, 3),
    aten.index_add.default: (0, 3),
    aten.index_put.default: (0, 2),
}
"""Operators, and the positions of their operands that are added."""

WIDE = {
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""In what is added instead."""
MAX_ROOM = 4
"""Elements that there are for each that floats are added to: all of them are read and written twice more."""


def _widen_small_sum(node: Node) -> None:
    """Have a sum at indexed places made in a dtype that can be added atomically: in 32 bits, and back.

    Integers of fewer bits wrap the same when what was summed in 32 is cut; truth values sum to true where
    numbers sum to other than 0.  Floats of 16 bits are rounded once, as torch's sum of sorted places is.
    """
    positions, result = SUMS[node.target], node.meta["val"]
    if result.dtype not in WIDE or not _adds(node) or not _may_widen(node, positions):
        return
    for position in positions:
        operand = source_of(node, position)
        wide = call_before(node, aten._to_copy.default, operand, dtype=WIDE[result.dtype])
        node.update_arg(position, wide)
    with result.fake_mode:
        node.meta["val"] = torch.empty_strided(
            result.shape, result.stride(), dtype=WIDE[result.dtype], device=result.device
        )
    narrow = call_before(node.next, aten._to_copy.default, node, dtype=result.dtype)
    narrow.meta["val"] = result
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)


def _may_widen(node: Node, positions: tuple[int, ...]) -> bool:
    """Whether no order is asked for, and copies of the whole are not most of the work."""
    value, added = node.meta["val"], source_of(node, positions[1])
    if not value.dtype.is_floating_point:
        return True
    if torch.are_deterministic_algorithms_enabled() or not is_static(node) or not is_static(added):
        return False
    return bool(value.numel() <= MAX_ROOM * added.meta["val"].numel())


def _adds(node: Node) -> bool:
    is_put = node.target is aten.index_put.default
    return not is_put or bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate"))


# -- batches of matrices times one matrix ------------------------------------------------------------------


def _fold_batch(gpu: Gpu, node: Node) -> None:
    """Make a ``bmm`` by an expanded matrix one ``mm`` of all rows, where a copy of those takes less time.

    ``F.linear`` of a tensor that is no matrix of rows in memory, as of an image's pixels by channels, is a
    batch of matmuls.  A library is slow where their rows begin at no multiple of 16 bytes, as with 196 pixels
    of 16 bits; what computes the tensor can as well store it row by row.
    """
    left, right = source_of(node), source_of(node, 1)
    if right.target is not aten.expand.default or not all(map(is_static, (node, left, right))):
        return
    matrix = source_of(right)
    if matrix.meta["val"].dim() != 2 or not _pays(node, left, gpu):
        return
    rows = call_before(node, aten.clone.default, left, memory_format=torch.contiguous_format)
    rows = call_before(node, aten.view.default, rows, [-1, left.meta["val"].shape[2]])
    result = call_before(node, aten.mm.default, rows, matrix)
    replace(node, call_before(node, aten.view.default, result, list(node.meta["val"].shape)))


def _pays(node: Node, left: Node, gpu: Gpu) -> bool:
    value, rows = node.meta["val"], left.meta["val"]
    strides = [s for n, s in zip(rows.shape, rows.stride(), strict=True) if n != 1]
    is_unaligned = any(s % UNIT for s in strides if s != 1)
    if value.itemsize != 2 or not is_unaligned or 1 not in strides:
        return False
    operations = 2 * value.numel() * rows.shape[2]
    moved = sum(math.prod(t.shape) * t.itemsize for t in (value, rows))
    is_odd = any(s % 2 for s in strides if s != 1)
    saved = saved_by_aligning(operations, moved, gpu, is_odd=is_odd)
    return saved > gpu.copying(rows.numel() * rows.itemsize)


# -- convolutions' biases ----------------------------------------------------------------------------------


def _separate_bias(node: Node) -> None:
    """Add the bias of a convolution by an operator of its own.

    cuDNN's convolution is followed by a kernel of torch's that adds the bias in memory; added in a fused
    kernel it is read and rounded the same.
    """
    bias, value = node.args[2], node.meta["val"]
    if not isinstance(bias, Node) or not value.dtype.is_floating_point:
        return
    node.update_arg(2, None)
    after, size = node.next, [-1] + [1] * (value.dim() - 2)
    with value.fake_mode:
        column_value = aten.view.default(bias.meta["val"], size)
    column = insert_call(after, column_value, aten.view.default, bias, size)
    total = insert_call(after, value, aten.add.Tensor, node, column)
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)


def _sum_bias_gradient(node: Node) -> None:
    """Have the gradient of a convolution's bias made by a sum, for which torch has a kernel of its own."""
    gradient, mask = node.args[0], list(node.args[10])  # type: ignore[arg-type]
    users = [u for u in node.users if u.target is operator.getitem and u.args[1] == 2]
    if not mask[2] or not users or not isinstance(gradient, Node):
        return
    value, sums = gradient.meta["val"], users[0].meta["val"]
    if value.dtype != sums.dtype:
        return
    # not computed here, where autocast may be on
    dims = [0, *range(2, value.dim())]
    total = insert_call(node, sums, aten.sum.dim_IntList, gradient, dims)
    for user in users:
        replace(user, total)
    node.update_arg(10, [*mask[:2], False])
    node.meta["val"] = (*node.meta["val"][:2], None)
    if not node.users:
        node.graph.erase_node(node)
