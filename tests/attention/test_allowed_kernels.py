"""The kernels of attention that a call allows (``sdpa_kernel``) are those that its program chose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _operands() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]


def _second_gradients(function: Callable[..., Any]) -> tuple[Tensor, ...]:
    """torch has them for attention as separate operators alone."""
    operands = _operands()
    loss = function(*operands).sin().sum()
    first = torch.autograd.grad(loss, operands, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), operands)


def test_a_kernel_that_is_forbidden_later() -> None:
    compiled = weft.compile(_attend)
    torch.testing.assert_close(compiled(*_operands()), _attend(*_operands()))
    with sdpa_kernel(SDPBackend.MATH):
        want = _second_gradients(_attend)
        torch.testing.assert_close(_second_gradients(compiled), want)
    torch.testing.assert_close(_second_gradients(compiled), want)  # where eager's kernel has none


def test_none_that_takes_the_operands() -> None:
    compiled = weft.compile(_attend)
    compiled(*_operands())
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for function in (_attend, compiled):
            with pytest.raises(RuntimeError, match=r"[Nn]o (viable|available)"):
                function(*_operands())
