"""Indices that no input decides become slices, in graphs that have no gradients yet.

``x.index_select(3, torch.arange(n))`` and an embedding of positions read a run of places.  As a slice that
costs nothing, and its gradient is a copy with zeros around it, where rows would be added one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from weft_loop_ir._torch import OpOverload, named_arguments
from weft_loop_ir.rewriting.fakes import ConstantValues, computed, insert_call, replace

aten = torch.ops.aten

Node = torch.fx.Node


def slice_known_indices(graph: torch.fx.Graph) -> int:
    """Replace reads at known places in ``graph``, a functional ATen graph, where a slice gives them.

    Gives how many.  The places are equally far apart along one dimension of the index, and the same along the
    others.  Results are new tensors, and contiguous: other ones are left as they are.
    """
    known = ConstantValues(graph)
    count = 0
    for target, read in READS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            found = read(node) if node.meta["val"].is_contiguous() else None
            run = None if found is None else _run(found.index, known)
            if found is not None and run is not None and _is_inside(run, found):
                replace(node, _sliced(node, found, run))
                count += 1
    return count


# ---- what is read ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """``source`` at the places ``index`` of its dimension ``dim``; the index's dims take that one's place."""

    source: Node
    dim: int
    index: Node


def _select(node: Node) -> Read | None:
    source, dim, index = node.args
    rank = _rank(source)
    if not rank or not _rank(index):
        return None
    assert isinstance(source, Node) and isinstance(dim, int) and isinstance(index, Node)
    return Read(source, dim % rank, index)


def _embedding(node: Node) -> Read | None:
    assert isinstance(node.target, OpOverload)
    given = named_arguments(node.target, node.args, node.kwargs)
    weight, index = given["weight"], given["indices"]
    if given.get("padding_idx", -1) >= 0:
        return None  # a row without gradients
    if given.get("scale_grad_by_freq") or given.get("sparse"):
        return None
    assert isinstance(weight, Node) and isinstance(index, Node)
    return Read(weight, 0, index) if _rank(index) else None


def _subscript(node: Node) -> Read | None:
    source, indices = node.args
    assert isinstance(source, Node) and isinstance(indices, Sequence)
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return None
    ((dim, index),) = given
    assert isinstance(index, Node)
    return Read(source, dim, index) if _rank(index) else None


READS = {
    aten.index_select.default: _select,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _subscript,
}
"""Operators that read at an index, and what is said of a call of each."""


def _rank(node: Any) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.dim()


# ---- which places ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """``count`` places from ``first``, ``step`` apart, along the index's dimension ``dim``."""

    first: int
    step: int
    count: int
    dim: int


def _run(index: Node, known: ConstantValues) -> Run | None:
    if index.meta["val"].dtype not in (torch.int32, torch.int64) or not _is_exact(index):
        return None
    places = known.tensor(index)
    if places is None or places.numel() == 0:
        return None
    dim = max(range(places.dim()), key=lambda d: places.shape[d])
    line = places
    for other in range(places.dim()):
        if other != dim:
            line = line.narrow(other, 0, 1)
    line = line.flatten()
    if not torch.equal(places, line.view(_along(dim, places.dim())).expand_as(places)):
        return None
    first, count = int(line[0]), line.numel()
    step = int(line[1]) - first if count > 1 else 1
    expected = first + step * torch.arange(count)
    is_run = step != 0 and torch.equal(line.long(), expected)
    return Run(first, step, count, dim) if is_run else None


def _is_exact(index: Node) -> bool:
    """Whether whole numbers alone decide ``index``: those are the same on each device."""
    found: set[Node] = set()
    pending = [index]
    while pending:
        node = pending.pop()
        value = node.meta.get("val")
        is_whole = isinstance(value, torch.Tensor) and not (
            value.is_floating_point() or value.is_complex()
        )
        if not is_whole or not isinstance(node.target, OpOverload):
            return False
        found.add(node)
        pending += [n for n in node.all_input_nodes if n not in found]
    return True


def _is_inside(run: Run, read: Read) -> bool:
    """Whether the places are there, counted from the start: else the operator says what is wrong."""
    extent = read.source.meta["val"].shape[read.dim]
    last = run.first + run.step * (run.count - 1)
    return type(extent) is int and min(run.first, last) >= 0 and max(run.first, last) < extent


def _along(dim: int, rank: int) -> list[int]:
    return [-1 if d == dim else 1 for d in range(rank)]


# ---- the slice -------------------------------------------------------------------------------------------


def _sliced(node: Node, read: Read, run: Run) -> Node:
    """What ``node`` gives, as a copy of a slice."""

    def call(target: OpOverload, *arguments: Any, **keywords: Any) -> Node:
        new = insert_call(node, node.meta["val"], target, *arguments, **keywords)
        new.meta.update(node.meta)
        new.meta["val"] = computed(new)
        return new

    low = min(run.first, run.first + run.step * (run.count - 1))
    width = abs(run.step) * (run.count - 1) + 1
    result = call(aten.slice.Tensor, read.source, read.dim, low, low + width, abs(run.step))
    if run.step < 0:
        result = call(aten.flip.default, result, [read.dim])
    rank = _rank(read.index)
    for position in range(rank):
        if position < run.dim:
            result = call(aten.unsqueeze.default, result, read.dim)
        elif position > run.dim:
            result = call(aten.unsqueeze.default, result, read.dim + position)
    shape = list(node.meta["val"].shape)
    if list(result.meta["val"].shape) != shape:
        result = call(aten.expand.default, result, shape)
    return call(aten.clone.default, result, memory_format=torch.contiguous_format)
