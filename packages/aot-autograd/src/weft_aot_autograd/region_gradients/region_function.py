"""A region operator in autograd, which records its forward when it is called and its backward when asked."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol

import torch

from .undefined_gradients import Reach, RegionReach


class Region(Protocol):
    """A conditional, loop or scan with gradients.  Operands and results go by position."""

    @property
    def tracked(self) -> Container[int]:
        """The results that have gradients."""

    def forward(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], Any, Reach | None]:
        """Record it; its results, what backward takes of it, and what has gradients of what.

        The last is None where a gradient of any result leads to all operands.
        """

    def backward(
        self, operands: Sequence[Any], kept: Any, gradients: Sequence[Any]
    ) -> dict[int, torch.Tensor]:
        """Record what computes the gradients of operands from those of results, None where there is none."""


class _RegionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, *operands: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.region, ctx.operands = region, operands
        results, ctx.kept, reach = region.forward(operands)
        if reach is not None:
            tensors = [k for k, operand in enumerate(operands) if isinstance(operand, torch.Tensor)]
            ctx.reach = RegionReach(reach, tensors)
        constant = [
            result
            for k, result in enumerate(results)
            if isinstance(result, torch.Tensor) and k not in region.tracked
        ]
        ctx.mark_non_differentiable(*constant)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        found = ctx.region.backward(ctx.operands, ctx.kept, gradients)
        return None, *(found.get(k) for k in range(len(ctx.operands)))


def call_region(region: Region, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a region, with their histories."""
    results: tuple[Any, ...] = _RegionFunction.apply(region, *operands)  # type: ignore[no-untyped-call]
    return results


def given_or_zeros(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """A gradient, zeros of the size of ``like`` where there is none."""
    if gradient is not None:
        return gradient
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
