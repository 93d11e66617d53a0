"""``torch.autograd.grad`` in a program as one node of a functional graph, through branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

LEAVES = "leaves"
"""Key of such a node's metadata: for each input its placeholder, None for what is no leaf."""


def inner_gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None] | None,
    reached: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the ``inputs`` that are ``reached``, laid out as the inputs are; None for others.

    ``tangents`` are the gradients of ``outputs``: None for one that is a number, whose gradient is 1.
    """
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(
        list(outputs), list(inputs), tangents, retain_graph=True, allow_unused=True
    )
    return tuple(
        (torch.zeros_like(value) if gradient is None else gradient) if is_reached else None
        for value, gradient, is_reached in zip(inputs, found, reached, strict=True)
    )


def point_at_leaves(graph: torch.fx.Graph) -> None:
    """Ask for gradients of leaves as they were given, not of what writes that autograd does not see left."""
    for node in graph.find_nodes(op="call_function", target=inner_gradients):
        outputs, inputs, *rest = node.args
        leaves = node.meta.pop(LEAVES)
        asked = tuple(new if old is None else old for new, old in zip(inputs, leaves, strict=True))
        node.args = (outputs, asked, *rest)
