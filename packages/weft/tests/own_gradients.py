"""Functions whose gradients the program wrote."""

from __future__ import annotations

import torch


class Cubed(torch.autograd.Function):
    """Gradients that are not those of its operators, and that have gradients themselves."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.pow(3), x * factor

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * x.pow(2) * 5 + second * torch.tensor([2.0, 3.0, 4.0]) * ctx.factor, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 7
