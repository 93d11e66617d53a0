"""Leaves of autograd's graph: which tensors are, and what makes others look computed from one."""

from __future__ import annotations

from typing import Any

import torch

from ._torch import keeping_version, known_equal, known_true
from .unsupported import Unsupported


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether no operator that autograd knows gave ``tensor``, also where it refuses to say.

    That is where its memory was written to after it was made as a view under ``no_grad``.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return True


def leaf_for(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf that ``tensor`` can have a gradient by."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise Unsupported("gradients of a tensor that can have none", str(tensor.dtype))
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True)


def give_gradients(tensor: torch.Tensor, leaf: torch.Tensor) -> None:
    """Let autograd track ``tensor`` as computed from ``leaf``."""
    with torch.enable_grad():
        if _is_expanded(tensor):
            _ComputedFrom.apply(tensor, leaf)  # type: ignore[no-untyped-call]
        else:
            tensor.add_(leaf)


def begin_history(fake: torch.Tensor) -> None:
    """Let autograd track an input as one that has been computed, not as one that the program writes to."""
    with keeping_version(fake):
        give_gradients(fake, leaf_for(fake))


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements along a dim are one place in memory: only parts of it may be written to."""
    return any(
        known_equal(stride, 0) and not known_true(size <= 1)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


class _ComputedFrom(torch.autograd.Function):
    """Does nothing, as if it wrote: what is expanded may not be written to as a whole."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient.sum()
