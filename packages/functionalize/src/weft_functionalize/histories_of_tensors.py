"""Which of two tensors that are one to the program has its place in autograd's graph."""

from __future__ import annotations

from typing import Any

import torch

from .tensor_map import TensorMap


def edge_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """Where a tensor has its gradient from: a node of autograd's, and the number of its result."""
    return tensor.grad_fn, tensor.output_nr


def with_its_history(tensor: torch.Tensor, detached: TensorMap[torch.Tensor]) -> torch.Tensor:
    """``tensor``, or what it was ``detached`` from where autograd has given it the history of that again.

    So it does with what it saved, when a backward reads that; again with what backward saves of it.
    """
    found, origin = tensor, detached.get(tensor) if tensor.requires_grad else None
    while origin is not None:
        if origin.requires_grad and _leads_as(origin, tensor):
            found = origin
        origin = detached.get(origin)
    return found


def _leads_as(view: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether one edge leads to both; none yet to a view whose base was written to.

    Autograd makes that one when it is asked for, which it cannot while an operator is recorded.
    """
    try:
        return edge_of(view) == edge_of(tensor)
    except RuntimeError:
        return False
