"""``torch.associative_scan`` in plain Python.

It flattens containers, puts the scanned dimension first and in order, and has :func:`scan_rows` scan, which
capture knows as the graph's own operator.  Arguments have been checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._torch import pytree


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, is_reverse: bool
) -> Any:
    """``xs``: tensors of one size in containers; results in the same, in a layout of their own."""
    leaves, spec = pytree.tree_flatten(xs)
    count = len(leaves)
    rows = [leaf.movedim(dim, 0) for leaf in leaves]
    if is_reverse:
        rows = [row.flip([0]) for row in rows]

    def combine(*values: Tensor) -> list[Tensor]:
        left = pytree.tree_unflatten(values[:count], spec)
        right = pytree.tree_unflatten(values[count:], spec)
        return pytree.tree_leaves(combine_fn(left, right))

    if rows[0].size(0) > 1:
        rows = scan_rows(combine, rows)
    if is_reverse:
        rows = [row.flip([0]) for row in rows]
    return pytree.tree_unflatten([row.movedim(0, dim) for row in rows], spec)


def scan_rows(combine: Callable[..., list[Tensor]], rows: list[Tensor]) -> list[Tensor]:
    """The running combination of rows: the first row as it is, each later one with what precedes it.

    ``combine`` takes the left values, then the right ones, without the scanned dimension.
    """
    results = [[row[0] for row in rows]]
    for position in range(1, rows[0].size(0)):
        results.append(combine(*results[-1], *(row[position] for row in rows)))
    return [torch.stack(column) for column in zip(*results, strict=True)]
