"""What ``associative_scan`` stands for: the program that capture evaluates in its stead.

It flattens containers, puts the scanned dimension first and in order, and has :func:`scan_rows` scan, which
capture knows as the graph's own operator.  Arguments have been checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._torch import pytree


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, is_reverse: bool, pieces: int
) -> Any:
    """``xs``: tensors of one size in containers; results in the same, in a layout of their own.

    The scanned dimension is cut in ``pieces`` that are scanned side by side, if more than one.
    """
    leaves, spec = pytree.tree_flatten(xs)
    count = len(leaves)
    rows = [leaf.movedim(dim, 0) for leaf in leaves]
    if is_reverse:
        rows = [row.flip([0]) for row in rows]

    def combine(*values: Tensor) -> list[Tensor]:
        left = pytree.tree_unflatten(values[:count], spec)
        right = pytree.tree_unflatten(values[count:], spec)
        return pytree.tree_leaves(combine_fn(left, right))

    if pieces > 1:
        rows = scan_pieces(combine, rows, pieces)
    elif rows[0].size(0) > 1:
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


def scan_pieces(
    combine: Callable[..., list[Tensor]], rows: list[Tensor], pieces: int
) -> list[Tensor]:
    """:func:`scan_rows` in two passes: all pieces side by side, then what precedes each is put before it.

    The last row is repeated to fill the last piece; what comes of that is left out.
    """
    length = rows[0].size(0)
    each = -(-length // pieces)
    inner = []
    for row in rows:
        filling = row[-1:].expand(each * pieces - length, *row.shape[1:])
        filled = torch.cat([row, filling]) if each * pieces > length else row
        inner.append(filled.reshape(pieces, each, *row.shape[1:]).transpose(0, 1))
    inner = scan_rows(combine, inner)
    before = scan_rows(combine, [row[-1] for row in inner])
    later = combine(
        *(row[:-1].expand(each, *row[:-1].shape) for row in before), *(row[:, 1:] for row in inner)
    )
    joined = [torch.cat([a[:, :1], b], 1) for a, b in zip(inner, later, strict=True)]
    return [row.transpose(0, 1).flatten(0, 1)[:length] for row in joined]
