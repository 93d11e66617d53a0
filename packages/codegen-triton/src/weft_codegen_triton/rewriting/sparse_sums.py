"""Sums in 16 bits at indexed places of a table most of whose rows get none: gradients of embeddings.

Sums are made in float32.  For a whole table of it, that would be most of what is moved: zeros are written,
and all is read and rounded.  So one position of each row that gets any is its owner, sums are made in a row
for each position, and the owners' are stored in a table of zeros in 16 bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_loop_ir.ops import HALVES
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_static, replace

from weft_codegen_triton.gpu import GRAPH_LAUNCH, Gpu
from weft_codegen_triton.rewriting.few_rows import row_sums

aten = torch.ops.aten

Node = torch.fx.Node

MORE_LAUNCHES = 4
"""Than sums in the whole table take: owners, two tables of zeros, what is stored."""


@dataclass(frozen=True)
class SparseSums:
    """``result[row, ...] = sum(values[p, ...] where places[p] == row)``, made in float32 by ``put``."""

    put: Node
    result: Node
    places: Node
    values: Node


def sum_sparse_rows(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Have those sums of ``graph`` at indexed places made by owners that take less time so."""
    for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
        sums = _sparse_sums(node)
        if sums is not None and _pays(sums, gpu):
            _rewrite(sums)


def _sparse_sums(node: Node) -> SparseSums | None:
    sums = row_sums(node)
    if sums is None or sums.table is not None or torch.are_deterministic_algorithms_enabled():
        return None
    result = next(iter(node.users), node)
    is_rounded = len(node.users) == 1 and result.target is aten._to_copy.default
    if node.meta["val"].dtype is not torch.float32 or not is_rounded:
        return None
    return SparseSums(node, result, sums.places, sums.values)


def _pays(sums: SparseSums, gpu: Gpu) -> bool:
    """Whether sizes and dtypes are such that less is moved, by more than further launches take."""
    table, result = sums.put.meta["val"], sums.result.meta["val"]
    places, values = sums.places.meta["val"], sums.values.meta["val"]
    if not all(map(is_static, (sums.put, sums.result, sums.places, sums.values))):
        return False
    if result.dtype not in HALVES or result.device != table.device or table.dim() == 0:
        return False
    if places.dtype not in (torch.int64, torch.int32) or not values.is_floating_point():
        return False
    if not table.is_contiguous() or result.stride() != table.stride():
        return False
    each = table[:1].numel()
    fewer = table.numel() - places.numel() * each  # elements, written once and read once in float32
    return gpu.moving(2 * table.itemsize * fewer) > MORE_LAUNCHES * GRAPH_LAUNCH


def _rewrite(sums: SparseSums) -> None:
    put, result = sums.put, sums.result
    value, places = result.meta["val"], sums.places
    shape, count = list(places.meta["val"].shape), places.meta["val"].numel()
    call = functools.partial(call_before, put)
    order = _made(put, value, aten.arange.default, count, dtype=torch.int32)
    nobody = _made(put, value, aten.full.default, [value.shape[0]], 0, dtype=torch.int32)
    owners = call(aten.index_put.default, nobody, [places], call(aten.view.default, order, shape))
    own = call(aten.index.Tensor, owners, [places])
    own = call(aten._to_copy.default, own, dtype=torch.int64)
    values = sums.values
    if list(values.meta["val"].shape) != [*shape, *value.shape[1:]]:
        values = call(aten.expand.default, values, [*shape, *value.shape[1:]])
    rows = [count, *value.shape[1:]]
    zeros = _made(put, value, aten.full.default, rows, 0.0, dtype=torch.float32)
    totals = call(aten.index_put.default, zeros, [own], values, True)
    found = call(aten.index.Tensor, totals, [own])
    found = call(aten._to_copy.default, found, dtype=value.dtype)
    table = _made(put, value, aten.full.default, list(value.shape), 0.0, dtype=value.dtype)
    replace(result, call(aten.index_put.default, table, [places], found))
    put.graph.erase_node(put)


def _made(
    before: Node, like: torch.Tensor, target: Any, *arguments: Any, dtype: torch.dtype
) -> Node:
    """A tensor on the device of ``like`` that ``target`` makes of ``arguments``."""
    with like.fake_mode:  # type: ignore[attr-defined]
        value = target(*arguments, dtype=dtype, device=like.device)
    return insert_call(before, value, target, *arguments, dtype=dtype, device=like.device)
