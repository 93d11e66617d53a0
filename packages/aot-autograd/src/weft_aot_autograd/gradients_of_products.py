"""Gradients of ``prod`` and ``cumprod``, which eager computes in other ways where there are zeros.

Torch's formulas look at the numbers to choose a way, and at how many there are, which data may decide.  Of
a tensor without numbers, which a graph is traced with, they take the way that holds for all: each element of
``cumprod`` by itself, in which a NaN or an infinity of one gradient meets the zeros of all others.  The
formulas here choose by element, as eager does, and hold for few elements too.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_functionalize import known_equal

from .formulas_without_counts import apply_function

aten = torch.ops.aten


class _CumulativeProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        result: torch.Tensor = aten.cumprod.default(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative of what follows is not the second one
            again = aten.cumprod.default(x, ctx.dim)
            return torch.autograd.grad(again, x, gradient, create_graph=True)[0], None
        return _of_cumulative_product(gradient, x, result, ctx.dim), None


def _of_cumulative_product(
    gradient: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dim: int
) -> torch.Tensor:
    """Nothing behind the first zero counts for what is before it, nor what is behind the second for it."""
    x, result = x.conj(), result.conj()
    zeros = (x == 0).cumsum(dim)  # up to and with each element
    before, between = zeros == 0, zeros == 1
    first = between & (x == 0)
    weighted = torch.where(before, result * gradient, 0.0)
    of_those_before = weighted.flip(dim).cumsum(dim).flip(dim) / x
    behind = torch.where(between & ~first, x, 1.0).cumprod(dim)
    of_first = (behind * torch.where(between, gradient, 0.0)).sum(dim, keepdim=True)
    of_first = of_first * torch.where(before, x, 1.0).prod(dim, keepdim=True)
    return torch.where(before, of_those_before, torch.where(first, of_first, 0.0))


class _Product(torch.autograd.Function):
    """Of all elements: with two zeros among them no gradient but zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = aten.prod.default(x)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        of_others = gradient * _products_of_others(x.reshape(-1), 0).view(x.shape)
        if torch.is_grad_enabled():
            return of_others
        zeros = (x == 0).sum()
        of_quotients = torch.where(zeros == 0, gradient * (result / x).conj(), 0.0)
        return torch.where(zeros == 1, of_others, of_quotients)


class _ProductAlong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        result: torch.Tensor = aten.prod.dim_int(x, dim, True)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        of_others = gradient * _products_of_others(x, ctx.dim)
        if torch.is_grad_enabled():
            return of_others, None
        of_quotients = gradient * (result / x).conj()
        return torch.where((x == 0).any(), of_others, of_quotients), None


def _products_of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Of each element, the conjugate product of all others: those before it times those behind."""
    before, behind = (_products_before(t, dim) for t in (x, x.flip(dim)))
    return (before * behind.flip(dim)).conj()


def _products_before(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Of each element, the product of those before it."""
    shape = [1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)]
    every = torch.cat([x.new_ones(()).expand(shape), x], dim).cumprod(dim)
    return every.narrow(dim, 0, x.size(dim))


def cumulative_product(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if _torch_serves(x, dtype) or known_equal(x.size(dim), 1):
        return NotImplemented
    return apply_function(_CumulativeProduct, x, dim)


def product(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return NotImplemented if _torch_serves(x, dtype) else apply_function(_Product, x)


def product_along(
    x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if _torch_serves(x, dtype):
        return NotImplemented
    result = apply_function(_ProductAlong, x, dim)
    return result if keepdim or result is NotImplemented else result.squeeze(dim)


def _torch_serves(x: torch.Tensor, dtype: torch.dtype | None) -> bool:
    return not x.requires_grad or x.dim() == 0 or dtype not in (None, x.dtype)
