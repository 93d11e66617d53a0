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
