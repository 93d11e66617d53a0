"""Sizes that floating-point arithmetic gives, ``int(0.7 * n)``: rounded as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor


def _resize(mode: str, factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode)


SIZES = (5, 6, 90)  # 0.7 * 90 is not 63.0
IMAGES: dict[str, Callable[[Tensor], Any]] = {
    # 6 becomes 6 by 1.1 and 12 by 2.1, where kernels ignore the factor
    "nearest 1.1": _resize("nearest", 1.1),
    "nearest 2.1": _resize("nearest", 2.1),
    "nearest-exact 2.1": _resize("nearest-exact", 2.1),
    "bilinear 1.1": _resize("bilinear", 1.1),
    "bicubic 0.7": _resize("bicubic", 0.7),
    "twice": lambda x: F.interpolate(F.interpolate(x, scale_factor=1.3), scale_factor=0.7),
    "two factors": lambda x: F.interpolate(x, scale_factor=(0.7, 1.1), mode="bilinear"),
}
ROWS: dict[str, Callable[[Tensor], Any]] = {
    "range": lambda x: torch.arange(x.shape[0], -8.000001, -4) + x.sum(),
    "fraction": lambda x: x[: math.floor(x.shape[0] * 0.7)].sum() + x,
    "third": lambda x: torch.zeros(math.ceil(x.shape[0] / 3)) + x.sum(),
    "product of three": lambda x: torch.zeros(int(x.shape[0] * 0.7 * 3)) + x.sum(),
    "numbers": lambda x: (x * (x.shape[0] / 3 * 0.1 + 2.5), x.shape[0] * 0.1 * 3),
    "compared": lambda x: x / (x.shape[0] / 2 / 3) if x.shape[0] / 3 * 3 > 6.5 else x + 0,
    "difference": lambda x: x.add(x, alpha=x.shape[0] * 0.1 - 1).clamp(max=x.shape[0] / 3 / 2),
}


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "trilinear"])
@pytest.mark.parametrize("factor", [1.1, 2.1])
def test_other_ranks(mode: str, factor: float) -> None:
    shape = (2, 3, 6, 5, 4) if mode == "trilinear" else (2, 3, 6)
    _check(_resize(mode, factor), [torch.randn(shape)], dynamic=False)


@pytest.mark.native  # the evaluator takes longer than the compiler for as many elements
@pytest.mark.parametrize("program", IMAGES.values(), ids=IMAGES)
def test_images(program: Callable[[Tensor], Any]) -> None:
    _check(program, [torch.randn(2, 3, n, n + 1) for n in SIZES])


@pytest.mark.parametrize("program", ROWS.values(), ids=ROWS)
def test_rows(program: Callable[[Tensor], Any]) -> None:
    _check(program, [torch.randn(n) for n in SIZES])


def _check(program: Callable[[Tensor], Any], inputs: list[Tensor], dynamic: bool = True) -> None:
    """Compare results and gradients with eager's."""
    compiled = weft.compile(program, dynamic=dynamic)
    for x in inputs:
        found = []
        for function in (compiled, program):
            own = x.clone().requires_grad_()
            results = function(own)
            first = results[0] if isinstance(results, tuple) else results
            gradients = torch.autograd.grad(first.sin().sum(), own)
            found.append((results, *gradients))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
        assert found[0][0][0].stride() == found[1][0][0].stride()
