"""Arguments that a graph writes to, as they were before: for running it again after the write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._torch import packs_saved_tensors
from .training_plan import Plan


def arguments_before(plan: Plan, arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
    """By position: tensors that stand for the arguments that are kept and written to.

    Gradients of theirs go where those of the arguments go now.  There are none where backward is an error
    whatever it is called for, as autograd would raise it; hooks that are given what is saved spare it that.
    """
    if plan.always_raises and not packs_saved_tensors():
        return {}
    return {
        k: ArgumentBefore.apply(arguments[k], is_read)  # type: ignore[no-untyped-call]
        for k, is_read in plan.overwritten.items()
    }


class ArgumentBefore(torch.autograd.Function):
    """A copy of a tensor, or one of its size without memory where nobody reads the values."""

    @staticmethod
    def forward(ctx: Any, argument: torch.Tensor, is_read: bool) -> torch.Tensor:
        if not is_read:
            return argument.new_zeros(()).expand(argument.shape)
        copy = argument.clone()
        if copy.stride() == argument.stride():
            return copy
        return torch.empty_strided(  # a program may read it
            argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device
        ).copy_(copy)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
