"""Sums at indexed places of a table with few rows (a bias by relative position): as reductions.

Every row is the sum over all positions of the values that are its own, in parts that are added up then.  The
order is one and the same in each run.  torch's kernels sort the positions, then add all values of a row one
after another.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_static, replace

from weft_codegen_triton.gpu import HOST_LAUNCH, Gpu

aten = torch.ops.aten

Node = torch.fx.Node

PART = 256
"""Positions that one partial sum is of, at most: several rows of these are summed by one program."""
MIN_PART = 32
SORTED_BYTES = 1200
"""What is moved in the time in which torch sorts a position."""
SORT_LAUNCHES = 10
IN_A_ROW = 4
"""Values of a row that ``index_put`` adds in a microsecond."""
ADDED_ATOMICALLY = (torch.float32, torch.float64)
"""Dtypes whose sums other kernels make, unless an order is asked for."""


@dataclass(frozen=True)
class RowSums:
    """``node[row, ...] = table[row, ...] + sum(values[p, ...] where places[p] == row)``.

    ``values`` can be expanded to ``[*places.shape, *table.shape[1:]]``; ``table``: None for zeros.
    """

    node: Node
    places: Node
    values: Node
    table: Node | None

    @property
    def rows(self) -> int:
        return int(self.node.meta["val"].shape[0])

    @property
    def positions(self) -> int:
        return int(self.places.meta["val"].numel())

    @property
    def terms(self) -> int:
        return int(self.node.meta["val"].numel()) * self.positions


def sum_few_rows(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Have those sums of ``graph`` at indexed places made by reductions that take less time so."""
    for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
        is_quick = node.meta["val"].dtype in ADDED_ATOMICALLY
        if is_quick and not torch.are_deterministic_algorithms_enabled():
            continue
        sums = row_sums(node)
        if sums is not None and _pays(sums, gpu):
            _rewrite(sums)


def row_sums(node: Node) -> RowSums | None:
    """What an ``index_put`` sums up in rows of a table; None where it sums up nothing, or in other places."""
    table, indices, values = node.args[:3]
    accumulates = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate")
    if not accumulates:
        return None
    assert isinstance(indices, list | tuple) and isinstance(table, Node)
    assert isinstance(values, Node)
    places = indices[0]
    if not isinstance(places, Node) or any(index is not None for index in indices[1:]):
        return None
    return RowSums(node, places, values, None if _is_zero(table) else table)


def _is_zero(node: Node) -> bool:
    is_full = node.target is aten.full.default and bool(node.args[1] == 0)
    return is_full or node.target in (aten.zeros.default, aten.new_zeros.default)


def _pays(sums: RowSums, gpu: Gpu) -> bool:
    """Whether sizes and dtypes are such that a reduction is known to take less time."""
    operands = [sums.node, sums.places, sums.values]
    if not all(map(is_static, operands)) or sums.terms == 0 or not sums.node.users:
        return False
    if not sums.node.meta["val"].is_contiguous():
        return False
    if sums.places.meta["val"].dtype not in (torch.int64, torch.int32):
        return False
    dtypes = {sums.node.meta["val"].dtype, sums.values.meta["val"].dtype}
    if len(dtypes) != 1 or not dtypes.pop().is_floating_point:
        return False
    sorting = SORT_LAUNCHES * HOST_LAUNCH + gpu.moving(sums.positions * SORTED_BYTES, part=1)
    return gpu.adding(sums.terms) < sorting + sums.positions / sums.rows / IN_A_ROW


def _rewrite(sums: RowSums) -> None:
    node, value = sums.node, sums.node.meta["val"]
    late = _first_user(node)
    call = functools.partial(call_before, late)
    wide = torch.promote_types(value.dtype, torch.float32)
    length = _part(sums.positions)
    parts, columns = sums.positions // length, value[0].numel()
    rows = _made(late, value, aten.arange.default, sums.rows, dtype=torch.int64)
    places = call(aten.index.Tensor, rows, [sums.places])  # which have to be there
    count = places.meta["val"].dim()
    places = _viewed(call, places, count, [parts, length, 1, 1])
    full = [*sums.places.meta["val"].shape, *value.shape[1:]]
    values = sums.values
    if list(values.meta["val"].shape) != full:
        values = call(aten.expand.default, values, full)
    along = _lies_along_positions(values, count)
    values = _viewed(call, values, count, [parts, length, columns, 1])
    # what neighbouring results are: columns where those lie side by side, else rows, which read the same
    order, kept = ([0, 2, 3, 1], (1, 2)) if along else ([0, 3, 2, 1], (2, 1))
    places, values = (call(aten.permute.default, n, order) for n in (places, values))
    rows = call(aten.view.default, rows, [sums.rows if n == kept[1] else 1 for n in range(1, 4)])
    is_own = call(aten.eq.Tensor, places, rows)
    values = call(aten._to_copy.default, values, dtype=wide) if wide != value.dtype else values
    zero = _made(late, value, aten.scalar_tensor.default, 0.0, dtype=wide)
    terms = call(aten.where.self, is_own, values, zero)
    total = call(aten.sum.dim_IntList, terms, [3])
    total = call(aten.sum.dim_IntList, total, [0])
    if along:
        total = call(aten.permute.default, total, [1, 0])
    total = call(aten.clone.default, total, memory_format=torch.contiguous_format)
    total = call(aten.view.default, total, list(value.shape))
    if sums.table is not None:
        table = sums.table
        table = call(aten._to_copy.default, table, dtype=wide) if wide != value.dtype else table
        total = call(aten.add.Tensor, table, total)
    if wide != value.dtype:
        total = call(aten._to_copy.default, total, dtype=value.dtype)
    replace(node, total)


def _part(positions: int) -> int:
    """The positions of a part: a divisor of ``positions``, or all where none will do."""
    if positions <= PART:
        return positions
    length = next(n for n in range(PART, 0, -1) if positions % n == 0)
    return length if length >= MIN_PART else positions


def _first_user(node: Node) -> Node:
    """The first node that reads ``node``: later nodes stay near what makes their operands, and are fused."""
    user = node.next
    while user not in node.users:
        user = user.next
    return user


def _made(before: Node, like: torch.Tensor, target: Any, number: float, dtype: torch.dtype) -> Node:
    """A tensor on the device of ``like`` that ``target`` makes of ``number``."""
    with like.fake_mode:  # type: ignore[attr-defined]
        value = target(number, dtype=dtype, device=like.device)
    return insert_call(before, value, target, number, dtype=dtype, device=like.device)


def _lies_along_positions(values: Node, count: int) -> bool:
    """Whether neighbours of the first ``count`` dimensions, positions, lie closer than columns."""
    value = values.meta["val"]
    steps = [(n, s) for n, s in zip(value.shape, value.stride(), strict=True)]
    positions = [s for n, s in steps[:count] if n != 1]
    columns = [s for n, s in steps[count:] if n != 1]
    return not columns or (bool(positions) and min(positions) < min(columns))


def _viewed(call: Callable[..., Node], node: Node, count: int, shape: Sequence[int]) -> Node:
    """``node`` with its first ``count`` dimensions, and the others, joined; a copy where they can't be."""
    value = node.meta["val"]
    steps = [(n, s) for n, s in zip(value.shape, value.stride(), strict=True)]
    for dims in (steps[:count], steps[count:]):
        kept = [(n, s) for n, s in dims if n != 1]
        if any(s != n * inner for (_, s), (n, inner) in itertools.pairwise(kept)):
            node = call(aten.clone.default, node, memory_format=torch.contiguous_format)
            break
    return call(aten.view.default, node, list(shape))
