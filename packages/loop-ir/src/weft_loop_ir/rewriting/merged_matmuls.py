"""Matmuls of one matrix with several constant ones become one matmul, whose columns are told apart again.

The projections to queries, keys and values, or to a gate and what it lets through, are such.  One matmul of
many columns keeps a GPU busier than several of few, and reads what it multiplies once; attention takes as
long on parts of the result's rows as on tensors of their own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from weft_loop_ir.rewriting.fakes import (
    ancestors,
    call_before,
    computed,
    insert_call,
    is_view,
    lies_like,
)

aten = torch.ops.aten

Node = torch.fx.Node

ALIGNMENT = 16
"""Bytes; the columns of each matmul have to begin at a multiple of it."""


def merge_matmuls(graph: torch.fx.Graph, constants: Collection[Node]) -> int:
    """Merge matmuls in ``graph``, whose ``constants`` are nodes that are computed once; gives how many go.

    Views follow; a result of the graph lies as before.
    """
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.target in (aten.mm.default, aten.addmm.default) and _is_mergeable(node, constants):
            groups.setdefault((node.target, node.args[-2]), []).append(node)
    several = [matmuls for matmuls in groups.values() if len(matmuls) > 1]
    pieces: dict[Node, torch.Tensor] = {}
    for matmuls in several:
        pieces |= _merged(matmuls, constants)
    _follow_strides(graph, pieces)
    return sum(len(matmuls) - 1 for matmuls in several)


def _is_mergeable(node: Node, constants: Collection[Node]) -> bool:
    *bias, left, right = node.args
    if node.kwargs or left in constants or right not in constants:
        return False
    value = node.meta["val"]
    columns = value.shape[1]
    if not isinstance(columns, int) or columns * value.itemsize % ALIGNMENT:
        return False
    return all(
        b in constants and b.meta["val"].shape == (columns,)  # type: ignore[union-attr]
        for b in bias
    )


def _merged(matmuls: Sequence[Node], constants: Collection[Node]) -> dict[Node, torch.Tensor]:
    """Put one matmul in the place of ``matmuls``; gives its result's parts, and what they stand for."""
    first = matmuls[0]
    _hoist([o for p in matmuls for o in p.args if o in constants], first)
    call = functools.partial(call_before, first)
    # rows of weights side by side, as those of each lie
    rows = call(aten.cat.default, [call(aten.t.default, p.args[-1]) for p in matmuls])
    operands = [first.args[-2], call(aten.t.default, rows)]
    if len(first.args) == 3:
        operands.insert(0, call(aten.cat.default, [p.args[0] for p in matmuls]))
    whole = call(first.target, *operands)
    pieces, start = {}, 0
    for matmul in matmuls:
        end = start + matmul.meta["val"].shape[1]
        piece = call(aten.slice.Tensor, whole, 1, start, end)
        matmul.replace_all_uses_with(piece)
        pieces[piece] = matmul.meta["val"]
        start = end
    for matmul in matmuls:
        matmul.graph.erase_node(matmul)
    return pieces


def _hoist(nodes: Sequence[Any], before: Node) -> None:
    """Move constants, and those that they are computed of, before ``before`` where they come after it."""
    needed = ancestors(nodes)
    is_after = False
    for node in list(before.graph.nodes):
        is_after = is_after or node is before
        if is_after and node in needed:
            before.prepend(node)


def _follow_strides(graph: torch.fx.Graph, pieces: Mapping[Node, torch.Tensor]) -> None:
    """Let views of ``pieces`` lie as these do now, and copy what was a view and is none, or leaves the graph.

    ``pieces`` gives each as it lay before.
    """
    moved: dict[Node, Any] = dict(pieces)
    for node in list(graph.nodes):
        operands = [n for n in node.all_input_nodes if n in moved]
        if not operands:
            continue
        if node.op == "output":
            for operand in operands:
                node.replace_input_with(operand, _restored(operand, moved, node))
        elif node.target is operator.getitem:
            moved[node], node.meta["val"] = node.meta["val"], _item(node)
        elif node.target is aten._unsafe_view.default or is_view(node):
            _view(node, operands[0], moved)


def _item(node: Node) -> Any:
    values, position = node.args
    assert isinstance(values, Node) and isinstance(position, int)
    return values.meta["val"][position]


def _view(node: Node, operand: Node, moved: dict[Node, Any]) -> None:
    before = node.meta["val"]
    try:
        value = computed(node)
    except (RuntimeError, ValueError):  # torch's, of a view that would not be one
        node.replace_input_with(operand, _restored(operand, moved, node))
        return
    node.meta["val"] = value
    if not isinstance(value, torch.Tensor) or not lies_like(before, value):
        moved[node] = before


def _restored(node: Node, moved: Mapping[Node, Any], before: Node) -> Node:
    """A copy of ``node`` that lies as it did."""
    return insert_call(before, moved[node], aten.clone.default, node)
