"""Batches of matrices times one matrix, where each begins anywhere: as one matmul of all their rows.

``F.linear`` of a tensor that is no matrix of rows in memory, as of an image's pixels by channels, is a batch
of matmuls.  A library is slow where their rows begin at no multiple of 16 bytes, as with 196 pixels of 16
bits; what computes the tensor can as well store it row by row.
"""

from __future__ import annotations

import math

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, is_static

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.rewriting.aligned_matmuls import UNIT, saved_by_aligning

aten = torch.ops.aten


def fold_batches(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Make those ``bmm`` by an expanded matrix one ``mm`` for which a copy of the rows takes less time."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        left, right = node.args
        if right.target is aten.expand.default and all(map(is_static, (node, left, right))):
            matrix = right.args[0]
            if matrix.meta["val"].dim() == 2 and _pays(node, left, gpu):
                _fold(node, left, matrix)


def _pays(node: torch.fx.Node, left: torch.fx.Node, gpu: Gpu) -> bool:
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


def _fold(node: torch.fx.Node, left: torch.fx.Node, matrix: torch.fx.Node) -> None:
    rows = call_before(node, aten.clone.default, left, memory_format=torch.contiguous_format)
    rows = call_before(node, aten.view.default, rows, [-1, left.meta["val"].shape[2]])
    result = call_before(node, aten.mm.default, rows, matrix)
    result = call_before(node, aten.view.default, result, list(node.meta["val"].shape))
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
