"""Gradients of gradients of products with zeros, taken inside a compiled function and of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft

PRODUCTS = {
    "cumprod": lambda x: x.cumprod(-1),
    "prod": lambda x: x.prod(),
    "prod of rows": lambda x: x.prod(-1),
    "of sizes that data decides": lambda x: x[x > -1].cumprod(0),
}
ROWS = [[1, 0.5, 0, 3], [0, 1.5, 0, 2], [1, 2, 3, 0.25]]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("rows", [ROWS, ROWS[2:]], ids=["zeros", "no zeros"])
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_second_gradients(
    product: Callable[[torch.Tensor], torch.Tensor], rows: list[list[float]], inside: bool
) -> None:
    def value(x: torch.Tensor) -> torch.Tensor:
        return product(x).sin().sum()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(function(x), x, create_graph=True)[0].square()

    results = []
    for compiled in (False, True):
        function = weft.compile(value) if compiled and not inside else value
        run = weft.compile(gradient) if compiled and inside else gradient
        x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        y = run(x)
        results.append([y.detach(), *torch.autograd.grad(y.sum(), x)])
    torch.testing.assert_close(results[1], results[0])
