"""Products made without gradients and written to with them: no views, whatever the sizes, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": torch.matmul,
    "operator": lambda x, y: x @ y,
    "method": lambda x, y: x.matmul(y),
    "of a transposed": lambda x, y: x @ y.mT,
    "power": lambda x, y: torch.matrix_power(y, 3),
}
SHAPES = [((4,), (4, 4)), ((4, 4), (3, 4, 4)), ((3, 4, 4), (3, 4, 4)), ((2, 1, 4, 4), (3, 4, 4))]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_written_with_gradients(
    product: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], dynamic: bool
) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            made = PRODUCTS[product](x, y)
        row = made[0].detach() * 2
        before = made._is_view(), made.requires_grad
        made += x.sum()
        return row, made, before

    def given(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            return PRODUCTS[product](x, y)

    def outcome(program: Any, given: Any) -> Any:
        torch.manual_seed(0)
        x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
        row, made, before = program(x, y)
        result = given(x, y)
        shown = result._is_view(), result.requires_grad
        result.mul_(x.sum())
        gradients = torch.autograd.grad(made.sum() + result.sum(), (x, y), allow_unused=True)
        return before, shown, row, made.detach(), gradients

    found = outcome(weft.compile(program, dynamic=dynamic), weft.compile(given, dynamic=dynamic))
    expected = outcome(program, given)
    assert found[:2] == expected[:2]
    torch.testing.assert_close(found[2:], expected[2:])
