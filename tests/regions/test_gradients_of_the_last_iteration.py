"""What each iteration makes anew has a gradient in the last only, and zeros in the others meet infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

Program = Callable[[Tensor, Tensor], Any]


def variances(x: Tensor, w: Tensor) -> Any:
    for number in x.flatten():
        v = number.var(-1)
    return v


def roots(x: Tensor, w: Tensor) -> Any:
    for row in x:
        v = (row * 0).sqrt() * w[0]
    return v


def until(x: Tensor, w: Tensor) -> Any:
    k, v = 0, x[0]
    while k < 20 and x.sum() > k - 10:
        v = (x[0] * 0).sqrt() * w[0] * k
        k += 1
    return v


def finite(x: Tensor, w: Tensor) -> Any:
    v = x[0]
    for k in range(25):
        v = x[k % 2] * w[0] * k
    return v


@pytest.mark.parametrize("program", [variances, roots, until, finite])
@pytest.mark.filterwarnings("ignore:var")
def test_like_eager(program: Program) -> None:
    compiled = weft.compile(program)
    for rows in (12, 25):
        found = []
        for call in (program, compiled):
            torch.manual_seed(0)
            x, w = (torch.rand(rows, 2, requires_grad=True) for _ in range(2))
            result = call(x, w)
            found.append([result, *torch.autograd.grad(result.sum(), [x, w], allow_unused=True)])
        torch.testing.assert_close(found[1], found[0], equal_nan=True)


def replaced_in_each(x: Tensor, w: Tensor, n: int) -> Tensor:
    v = w
    for _ in range(n % 50):
        v = x * 2
    return v


def test_what_no_result_is_computed_from_has_no_gradient() -> None:
    """Sizes vary, and all that is known of the length is that there is an iteration."""
    compiled = weft.compile(replaced_in_each, dynamic=True)
    for n in (73, 21, 0):
        x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        found, wanted = (
            torch.autograd.grad(f(x, w, n).sum(), (x, w), allow_unused=True)
            for f in (compiled, replaced_in_each)
        )
        assert [g is None for g in found] == [g is None for g in wanted]
