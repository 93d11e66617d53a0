"""Writes through ``as_strided`` views, with sizes that vary: gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

# Each writes to a window of the (rows, 2) tensor ``o``; ``x`` is what ``o`` is computed of.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda o, x: o.as_strided((2,), (1,)).add_(2.0),
    "factor": lambda o, x: o.as_strided((2,), (1,), 1).mul_(3.0),
    "values with gradients": lambda o, x: o.as_strided((2, 2), (2, 1)).copy_(x[:2].exp()),
    "every second": lambda o, x: o.as_strided((3,), (2,), 1).mul_(x[:3, 0]),
    "size that varies": lambda o, x: o.as_strided((o.shape[0],), (2,)).mul_(x[:, 1]),
    "start that varies": lambda o, x: o.as_strided((2,), (1,), o.shape[0]).fill_(2.0),
    "transposed": lambda o, x: o.as_strided((2, 3), (1, 2)).sin_(),
    "transposed memory": lambda o, x: o.t().as_strided((2, 3), (1, 2)).mul_(2.0),
    "twice": lambda o, x: o.as_strided((3,), (1,)).sin_().as_strided((2,), (1,)).mul_(x[0]),
}


@pytest.mark.parametrize("dynamic", [True, False, None])
@pytest.mark.parametrize("name", WRITES)
def test_gradients_of_written_windows(name: str, dynamic: bool | None) -> None:
    def program(x: Any) -> Any:
        o = x / 2 + 0
        WRITES[name](o, x)
        return o * o

    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (3, 5):
        found = []
        for function in (compiled, program):
            x = torch.linspace(0.5, 2.0, rows * 2, dtype=torch.float64).view(rows, 2)
            result = function(x.requires_grad_())
            weights = torch.linspace(0.5, 1.5, rows * 2, dtype=torch.float64).view(rows, 2)
            (gradient,) = torch.autograd.grad((result * weights).sum(), [x])
            found.append((result, gradient))
        torch.testing.assert_close(*found)
    weft.reset()


@pytest.mark.parametrize("dynamic", [True, False])
def test_gradients_of_the_operator(dynamic: bool) -> None:
    """A call of ``as_strided_scatter`` has the operator's own gradient, which is not that of a write."""

    def program(x: Any, y: Any) -> Any:
        once = torch.as_strided_scatter(x.exp(), y, (2, 2), (2, 1), 1)
        once.as_strided((2,), (3,)).mul_(y[0])
        return torch.as_strided_scatter(once.sin(), y.cos(), y.shape, (1, 2))

    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (3, 5):
        found = []
        for function in (compiled, program):
            x = torch.linspace(0.5, 2.0, rows * 2, dtype=torch.float64).view(rows, 2)
            y = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64).view(2, 2)
            inputs = [x.requires_grad_(), y.requires_grad_()]
            result = function(*inputs)
            (first,) = torch.autograd.grad(result.sin().sum(), [x], create_graph=True)
            found.append((result, first, *torch.autograd.grad(first.sum() + result.sum(), inputs)))
        torch.testing.assert_close(*found)
    weft.reset()
