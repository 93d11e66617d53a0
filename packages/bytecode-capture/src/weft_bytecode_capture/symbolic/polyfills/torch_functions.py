"""``torch.associative_scan``, and parts of torch's function transforms, in plain Python.

The scan flattens containers, puts the scanned dimension first and in order, and has :func:`scan_rows` scan,
which capture knows as the graph's own operator.  Arguments have been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._torch import pytree
from ..._torch.transforms import GRADIENTS_OF_TRANSFORM
from ..models.table import polyfill


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


# Parts of torch's function transforms in plain Python.


@polyfill(GRADIENTS_OF_TRANSFORM)
def _gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor] | None = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:
    """The gradients of what needs any; zeros for an input that nothing is computed from."""
    seeds = [None] * len(outputs) if grad_outputs is None else grad_outputs
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=False) if o.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(inputs)
    if pairs:
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            inputs,
            [seed for _, seed in pairs],
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    return tuple(
        torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True)
    )


def linear_map(func: Callable[..., Any], primals: tuple[Any, ...]) -> Callable[..., Any]:
    """What ``torch.func.linearize`` gives beside the value, where that has no gradients.

    It goes forward again; in a graph what is computed twice is one.
    """

    def along(*tangents: Any) -> Any:
        return torch.func.jvp(func, primals, tangents)[1]

    return along
