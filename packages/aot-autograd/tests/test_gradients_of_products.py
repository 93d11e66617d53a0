"""Gradients of products where zeros, NaN and infinities meet: each element's is what eager gives it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from .gradients_beside_eager import train

NAN, INF = float("nan"), float("inf")
ROWS = [
    *([1, 2, 3, 4, 5], [0, 2, 3, 4, 5], [1, 0, 3, 0, 5], [0, 0, 3, 4, 5], [1, 2, 3, 4, 0]),
    *([1, NAN, 0, 3, 4], [1, INF, 2, 0, 4], [1, 2, INF, 4, 5], [0, 0, 0, 0, 0], [0, INF, 1, 1, 0]),
]
WEIGHTS = [
    *([1, 2, 3, 4, 5], [NAN, 1, 1, 1, 1], [1, 1, NAN, 1, 1], [1, 1, 1, 1, INF]),
    *([0, 0, INF, 0, 0], [1, 1, 1, 1, NAN]),
]
PRODUCTS = {
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod of columns": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod(),
    "prod of rows": lambda x: x.prod(-1),
    "prod of rows, kept": lambda x: x.prod(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_numbers_that_are_not_finite_stay_with_their_elements(
    product: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    compiled, _ = train(product, [_leaf([ROWS[0], ROWS[0]], dtype)])
    for row, weights in itertools.product(ROWS, WEIGHTS):
        results = []
        for function in (product, compiled):
            x = _leaf([row, ROWS[0]], dtype)
            y = function(x)
            y = y[0] if isinstance(y, tuple) else y
            weight = torch.tensor(weights * 2, dtype=dtype)[: y.numel()].view(y.shape)
            results.append([y.detach(), *torch.autograd.grad(y, x, weight)])
        torch.testing.assert_close(results[1], results[0], equal_nan=True)


def _leaf(rows: list[list[float]], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype, requires_grad=True)
