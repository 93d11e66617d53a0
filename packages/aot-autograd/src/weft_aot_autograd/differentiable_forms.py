"""How operators are called where gradients are to flow, if not as the functional graph calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch
from weft_functionalize import as_kernels_compute, known_equal

from ._torch import OpOverload
from .formulas_without_counts import cumulative_log_sum, cumulative_sum, matrix_product
from .gradients_of_products import cumulative_product, product, product_along
from .strided_windows import as_strided, as_strided_scatter
from .unsupported import Unsupported

aten = torch.ops.aten


def _masked_assignment(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    """``x[mask] = value`` of one number is a choice; the formula would look up where the mask is true."""
    if accumulate or not known_equal(values.numel(), 1) or len(indices) != 1:
        return NotImplemented
    (mask,) = indices
    if mask is None or mask.dtype is not torch.bool:
        return NotImplemented
    trailing = self.dim() - mask.dim()
    mask = mask.view(*mask.shape, *[1] * trailing)
    return torch.where(mask, values.to(self.dtype).view(()), self)


def _scaled_sum(self: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """``self + alpha * other`` with a number that varies: the formula would ask whether it is 1."""
    if not isinstance(alpha, (torch.SymFloat, torch.SymInt)) or not isinstance(other, torch.Tensor):
        return NotImplemented
    scale: Any = alpha
    dtype = torch.result_type(self, other)
    if not dtype.is_floating_point:
        return NotImplemented
    wide = torch.float32 if dtype.itemsize < 4 else dtype  # rounded once, as the operator does
    return (self.to(wide) + other.to(wide) * scale).to(dtype)


def _scaled_difference(self: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
    return _scaled_sum(self, other, alpha=-alpha)


def _written_window(
    self: torch.Tensor, src: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], *rest: Any
) -> Any:
    """``as_strided_scatter``, which stands for a write through ``as_strided``.

    Torch's formula gives what was overwritten the gradient of what has replaced it.
    """
    result = as_strided_scatter(self, src, size, stride, *rest)
    if result is NotImplemented and (self.requires_grad or src.requires_grad):
        raise Unsupported(
            "gradient of a write through as_strided",
            f"size {tuple(size)}, stride {tuple(stride)} of a tensor of {tuple(self.shape)}",
            "write through slices and views, whose sizes may vary",
        )
    return result


def _by_parts(operator: OpOverload) -> Callable[..., Any]:
    """``select_scatter`` or ``slice_scatter`` of complex numbers, for which torch has no formula."""

    def form(self: torch.Tensor, src: torch.Tensor, dim: int = 0, *place: Any) -> Any:
        if not self.is_complex():
            return NotImplemented
        whole, part = (t.to(self.dtype).resolve_conj() for t in (self, src))
        written = operator(
            torch.view_as_real(whole), torch.view_as_real(part), dim % self.dim(), *place
        )
        return torch.view_as_complex(written)

    return form


_PARTS = _by_parts(aten.slice_scatter.default)


def _written_slice(
    self: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """The derivative's rule for batched gradients takes no negative bounds, nor any beyond the size."""
    size = self.size(dim)
    if any(type(number) not in (int, NoneType) for number in (size, start, end)):
        return _PARTS(self, src, dim, start, end, step)
    first, last, _ = slice(start, end).indices(size)
    bounds = dim, first, max(first, last), step
    if self.is_complex():
        return _PARTS(self, src, *bounds)
    return aten.slice_scatter.default(self, src, *bounds)


# By operator: a function of its arguments that gives its result, or NotImplemented where it is fit itself.
DIFFERENTIABLE_FORMS: dict[OpOverload, Callable[..., Any]] = {
    aten.add.Tensor: _scaled_sum,
    aten.sub.Tensor: _scaled_difference,
    aten.index_put.default: _masked_assignment,
    aten.as_strided.default: as_strided,
    aten.as_strided_scatter.default: _written_window,
    aten.select_scatter.default: _by_parts(aten.select_scatter.default),
    aten.slice_scatter.default: _written_slice,
    aten.cumsum.default: cumulative_sum,
    aten.logcumsumexp.default: cumulative_log_sum,
    aten.cumprod.default: cumulative_product,
    aten.prod.default: product,
    aten.prod.dim_int: product_along,
    aten.mm.default: matrix_product,
}


SKIPS_LOG_SUM_EXP = {
    aten._scaled_dot_product_efficient_attention.default: 4,
    aten._scaled_dot_product_cudnn_attention.default: 4,
}
"""Operators that compute what their gradient needs only if asked to, and the argument that asks."""


def call_differentiably(target: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run ``target``, or the form of it that gradients can flow through where they are to."""
    position = SKIPS_LOG_SUM_EXP.get(target)
    if position is not None and torch.is_grad_enabled():
        args = (*args[:position], True, *args[position + 1 :])
    form = DIFFERENTIABLE_FORMS.get(target)
    if form is not None and torch.is_grad_enabled():
        result = form(*args, **kwargs)
        if result is not NotImplemented:
            return result
    with as_kernels_compute(target):
        return target(*args, **kwargs)
