"""Operators whose formulas in torch ask how many elements there are, for tensors of which data decides it.

``y.cumsum(0)`` of ``y = x[mask]``: torch returns the gradient as it is where there is at most one element,
which a graph does not know.  The formulas here are the general ones, which hold for few elements too.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_functionalize import known_equal

from ._torch import apply_beside_transforms, are_any_wrapped, is_data_dependent

aten = torch.ops.aten


class _CumulativeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        ctx.dim, ctx.dtype = dim, x.dtype
        result: torch.Tensor = aten.cumsum.default(x, dim, dtype=dtype)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        dim = ctx.dim
        return gradient.to(ctx.dtype).flip(dim).cumsum(dim).flip(dim), None, None


class _CumulativeLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        result: torch.Tensor = aten.logcumsumexp.default(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        logarithm = gradient.abs().log()
        lowest = torch.full_like(logarithm, float("-inf"))
        parts = [
            torch.where(sign, logarithm, lowest).sub(result).flip(ctx.dim)
            for sign in (gradient > 0, gradient < 0)
        ]
        above, below = (part.logcumsumexp(ctx.dim).flip(ctx.dim).add(x).exp() for part in parts)
        return above - below, None


class _MatrixProduct(torch.autograd.Function):
    """Gradients lie as the matrices do: columns one after the other where these are known to."""

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        result: torch.Tensor = aten.mm.default(left, right)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        left, right = ctx.saved_tensors
        of_left = of_right = None
        if ctx.needs_input_grad[0]:
            other = right.conj()
            columns = _lies_by_columns(left)
            of_left = other.mm(gradient.t()).t() if columns else gradient.mm(other.t())
        if ctx.needs_input_grad[1]:
            other = left.conj()
            columns = _lies_by_columns(right)
            of_right = gradient.t().mm(other).t() if columns else other.t().mm(gradient)
        return of_left, of_right


def _lies_by_columns(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.stride()
    return known_equal(rows, 1) and known_equal(columns, matrix.size(0))


def apply_function(function: Any, *arguments: Any) -> Any:
    """``function.apply``; where a transform has wrapped a tensor torch's own formula, which it knows."""
    if are_any_wrapped(a for a in arguments if isinstance(a, torch.Tensor)):
        return NotImplemented
    return apply_beside_transforms(function, *arguments)


def _torch_serves(x: torch.Tensor) -> bool:
    """Whether no gradient is wanted, or none of the sizes depends on data."""
    return not x.requires_grad or not any(map(is_data_dependent, x.shape))


def cumulative_sum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if _torch_serves(x) or x.dim() == 0 or x.is_complex():
        return NotImplemented
    return apply_function(_CumulativeSum, x, dim, dtype)


def cumulative_log_sum(x: torch.Tensor, dim: int) -> Any:
    if _torch_serves(x) or x.dim() == 0 or x.is_complex():
        return NotImplemented
    return apply_function(_CumulativeLogSum, x, dim)


def matrix_product(left: torch.Tensor, right: torch.Tensor) -> Any:
    """Torch's asks for the strides of both, to lay the gradients as they lie."""
    strides = (*left.stride(), *right.stride())
    if not (left.requires_grad or right.requires_grad) or not any(map(is_data_dependent, strides)):
        return NotImplemented
    return apply_function(_MatrixProduct, left, right)
