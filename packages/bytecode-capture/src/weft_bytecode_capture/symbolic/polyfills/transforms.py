"""Parts of torch's function transforms in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._torch.transforms import GRADIENTS_OF_TRANSFORM
from ..models.table import polyfill


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
