"""``F.ctc_loss`` in a graph.

Eager keeps for backward a table whose size data decides.  Here an operator of its own computes, beside the
losses, their gradients where these are wanted: what eager computes in backward, for gradients of one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("weft::ctc_losses", mutates_args=())
def ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    differentiable: bool,
) -> tuple[Tensor, Tensor]:
    """The loss of each sequence, and if ``differentiable`` its gradient of ``log_probs``."""
    rest = targets, input_lengths, target_lengths
    losses, table = torch.ops.aten._ctc_loss(log_probs, *rest, blank, zero_infinity)
    if not differentiable:
        return losses, log_probs.new_empty(0)
    gradients = torch.ops.aten._ctc_loss_backward(
        torch.ones_like(losses), log_probs, *rest, losses, table, blank, zero_infinity
    )
    return losses, gradients


@ctc_losses.register_fake
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    differentiable: bool,
) -> tuple[Tensor, Tensor]:
    losses = log_probs.new_empty(log_probs.shape[1])
    return losses, log_probs.new_empty(log_probs.shape if differentiable else 0)


@torch.library.custom_op("weft::ctc_gradient", mutates_args=())
def ctc_gradient(gradient: Tensor, gradients: Tensor) -> Tensor:
    """The gradient for losses that have ``gradient``; it has none itself, as eager's."""
    return gradients * gradient.reshape(1, -1, 1)


@ctc_gradient.register_fake
def _(gradient: Tensor, gradients: Tensor) -> Tensor:
    return torch.empty_like(gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    (gradients,) = ctx.saved_tensors
    return ctc_gradient(gradient, gradients), None, None, None, None, None, None


ctc_losses.register_autograd(_backward, setup_context=_save)


def _integers(name: str, lengths: Any) -> Tensor:
    if not isinstance(lengths, Tensor):
        return torch.tensor(lengths)
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise RuntimeError(f"{name} must be integral")
    return lengths


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The losses' mean, sum, or themselves."""
    input_lengths = _integers("input_lengths", input_lengths)
    target_lengths = _integers("target_lengths", target_lengths)
    batched = log_probs.dim() == 3
    if not batched:
        log_probs = log_probs.unsqueeze(1)
    differentiable = torch.is_grad_enabled() and log_probs.requires_grad
    rest = targets.to(log_probs.device, torch.int64), input_lengths.long(), target_lengths.long()
    losses: Tensor = ctc_losses(log_probs, *rest, blank, zero_infinity, differentiable)[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), torch.zeros_like(losses), losses)
    if reduction == "mean":
        lengths: Tensor = target_lengths.to(losses.dtype).clamp(min=1)
        return (losses / lengths).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if batched else losses.squeeze(0)
