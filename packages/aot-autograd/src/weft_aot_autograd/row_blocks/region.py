"""Finds what is read row by row of a large matrix that a matmul makes: what blocks of rows compute.

Values are *wide*, with at least as many elements in a row as the matrix has columns, or narrow.  Wide ones
live in a block only.  Narrow ones are computed there where they lead to wide ones or read them.  What adds
up rows (the gradients of the weight and of the bias) is added up over blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from weft_functionalize import known_equal, size_hint

from .rows import TRANSPOSED, Demand, Rows, Size, columns_hint, shape_of
from .rules import is_cheap, rule_of

aten = torch.ops.aten
Node = torch.fx.Node

_SUMS = frozenset({aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim})


@dataclass(frozen=True)
class OverRows:
    """What a node adds up over rows: ``left.T @ right``, or without ``right`` elements of ``left``.

    ``left`` has ``dims`` dimensions of rows; ``along`` are those that elements are added up along.
    """

    left: Node
    right: Node | None
    dims: int = 1
    along: tuple[int, ...] = (0,)

    @property
    def operands(self) -> tuple[Node, ...]:
        return (self.left,) if self.right is None else (self.left, self.right)


@dataclass
class Region:
    """What blocks compute of the matrix ``root`` of ``rows`` rows.

    ``dims``: by node how many dimensions are rows, in the graph's order; ``demands``: how their operands are
    taken; ``over_rows``: what is added up over blocks.
    """

    root: Node
    rows: Size
    columns: int
    dims: dict[Node, int] = field(default_factory=dict)
    demands: dict[Node, Mapping[Node, Demand]] = field(default_factory=dict)
    over_rows: dict[Node, OverRows] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Node]:
        """Narrow values of the region that others read, with a row for each of the matrix's."""
        inside = {*self.dims, *self.over_rows}
        return [
            n
            for n, dims in self.dims.items()
            if not self.is_wide(n, dims) and any(user not in inside for user in n.users)
        ]

    def is_wide(self, node: Node, dims: int) -> bool:
        """Whether a row of it has at least as many elements as the matrix has columns."""
        return columns_hint(node, dims) >= self.columns

    def operands(self, node: Node) -> Mapping[Node, Demand]:
        """How what ``node``, of the region or a sum over rows, reads is taken."""
        if node in self.dims:
            return self.demands[node]
        total = self.over_rows[node]
        return {n: Rows(total.dims) for n in total.operands}


def find_region(root: Node, order: Mapping[Node, int]) -> Region | None:
    """The region of the matmul ``root``; None where a wide value has a reader that takes all of it."""
    rows, columns = shape_of(root)
    region = Region(root, rows, size_hint(columns))
    aligned = _aligned(root, rows, order)
    inside = _inside(region, aligned)
    if not _add_all(region, inside, aligned, order):
        return None
    _pull_in_wide(region)
    region.dims = dict(sorted(region.dims.items(), key=lambda item: order[item[0]]))
    return region if _agrees(region) and _is_closed(region) else None


def _aligned(root: Node, rows: Size, order: Mapping[Node, int]) -> dict[Node, int]:
    """All that follows from ``root`` row by row, with how many dimensions are rows."""
    found = {root: 1}
    pending = [root]
    while pending:
        node = pending.pop()
        for user in node.users:
            rule = rule_of(user)
            if user in found or rule is None:
                continue
            dims = rule.result_dims(user, node, found[node], rows)
            if dims is not None and rule.demands(user, dims, rows) is not None:
                found[user] = dims
                pending.append(user)
    return dict(sorted(found.items(), key=lambda item: order[item[0]]))


def _inside(region: Region, aligned: Mapping[Node, int]) -> set[Node]:
    """Of the ``aligned`` nodes the wide ones, what reads these, and what leads from these to those."""
    wide = {n for n, dims in aligned.items() if region.is_wide(n, dims)}
    leads: set[Node] = set()
    for node in reversed(list(aligned)):
        if any(user in wide or user in leads for user in node.users if user in aligned):
            leads.add(node)
    return {
        n for n in aligned if n in wide or n in leads or any(a in wide for a in n.all_input_nodes)
    }


def _add_all(
    region: Region, inside: Set[Node], aligned: Mapping[Node, int], order: Mapping[Node, int]
) -> bool:
    """Add ``inside`` to the region, in order; whether that can be."""
    nodes = sorted(inside, key=order.__getitem__)
    return all(_add(region, node, aligned[node]) for node in nodes)


def _agrees(region: Region) -> bool:
    """Whether operands that are in the region are taken by the rows that they have there."""
    return all(
        demand == Rows(region.dims[operand])
        for demands in region.demands.values()
        for operand, demand in demands.items()
        if operand in region.dims
    )


def _add(region: Region, node: Node, dims: int) -> bool:
    rule = rule_of(node)
    demands = None if rule is None else rule.demands(node, dims, region.rows)
    if demands is None:
        return False
    region.dims[node], region.demands[node] = dims, demands
    return True


def _pull_in_wide(region: Region) -> None:
    """Compute in blocks, too, what is wide and taken by rows, as the gradient that a target's column has.

    And what is computed of such, as that gradient's sum over the columns.
    """
    pending = [*region.dims]
    known: dict[tuple[Node, int], bool] = {}
    while pending:
        for operand, demand in region.demands[pending.pop()].items():
            if operand in region.dims or not isinstance(demand, Rows):
                continue
            is_own = is_cheap(operand) or all(user in region.dims for user in operand.users)
            is_own = is_own and _is_of_wide(region, operand, demand.dims, known)
            if is_own and _add(region, operand, demand.dims):
                pending.append(operand)


def _is_of_wide(region: Region, node: Node, dims: int, known: dict[tuple[Node, int], bool]) -> bool:
    """Whether ``node``, outside of the region, is wide or computed row by row of what is."""
    if node.op != "call_function":
        return False
    if region.is_wide(node, dims):
        return True
    key = node, dims
    if key not in known:
        known[key] = False
        rule = rule_of(node) if is_cheap(node) else None
        demands = None if rule is None else rule.demands(node, dims, region.rows)
        known[key] = any(
            isinstance(demand, Rows)
            and (operand in region.dims or _is_of_wide(region, operand, demand.dims, known))
            for operand, demand in (demands or {}).items()
        )
    return known[key]


def _is_closed(region: Region) -> bool:
    """Whether every reader of what is wide is inside, or adds it up over rows; notes the latter."""
    for node, dims in region.dims.items():
        is_wide = region.is_wide(node, dims)
        for user in node.users:
            if user in region.dims:
                if node not in region.demands[user]:
                    return False
            elif not is_wide:
                continue
            elif node is not region.root and not _follows(region, node):
                continue  # pulled in, and computed for others as well
            elif user.target in TRANSPOSED:
                if not all(_sums_over_rows(region, reader) for reader in user.users):
                    return False
            elif not _sums_over_rows(region, user):
                return False
    return True


def _follows(region: Region, node: Node) -> bool:
    """Whether it depends on the matrix."""
    pending = [node]
    while pending:
        current = pending.pop()
        if current is region.root:
            return True
        pending += [a for a in region.demands[current] if a in region.dims]
    return False


def _sums_over_rows(region: Region, node: Node) -> bool:
    """Whether ``node`` adds up rows of the region, which it is noted to do."""
    found = _product_over_rows(region, node) or _sum_over_rows(region, node)
    if found is None:
        return False
    region.over_rows[node] = found
    return True


def _product_over_rows(region: Region, node: Node) -> OverRows | None:
    if node.target is not aten.mm.default:
        return None
    turned, right = node.args
    assert isinstance(turned, Node) and isinstance(right, Node)
    left = turned.args[0] if turned.target in TRANSPOSED else None
    if not isinstance(left, Node) or len(shape_of(left)) != 2:
        return None
    both = (left, right)
    if not all(known_equal(shape_of(n)[0], region.rows) for n in both):
        return None
    return OverRows(left, right) if all(region.dims.get(n, 1) == 1 for n in both) else None


def _sum_over_rows(region: Region, node: Node) -> OverRows | None:
    if node.target not in _SUMS or not node.meta["val"].dtype.is_floating_point:
        return None
    operand = node.args[0]
    dims = region.dims.get(operand)  # type: ignore[arg-type]
    if dims is None or "dtype" in node.kwargs:
        return None
    assert isinstance(operand, Node)
    rank = len(shape_of(operand))
    given: Any = node.args[1] if len(node.args) > 1 else None
    along = sorted(d % rank for d in given) if given else range(rank)
    return OverRows(operand, None, dims, (*along,)) if {*along} >= {*range(dims)} else None
