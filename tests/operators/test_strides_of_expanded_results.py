"""Results that are expanded lie as eager's, where what they are of was written to in another layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "tril_": lambda x: x.tril_(),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, x.clone()),
    "cumsum_": lambda x: x.cumsum_(0),
    "fill_": lambda x: x.fill_(2.0),
}
RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "in front": lambda y: y.expand(2, *y.shape),
    "behind": lambda y: y.unsqueeze(-1).expand(*y.shape, 3),
    "twice": lambda y: y.unsqueeze(1).expand(2, -1, 4, -1),
    "a part": lambda y: y[:, ::2].expand(2, -1, -1),
    "beside it": lambda y: (y.expand(2, -1, -1), y)[0] + 0 * y,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_strides(
    write: Callable[[torch.Tensor], Any],
    result: Callable[[torch.Tensor], Any],
    gradients: bool,
    dynamic: bool,
) -> None:
    def program(x: torch.Tensor) -> Any:
        write(x)
        return result(x * 2), x

    results = []
    for run in (program, weft.compile(program, dynamic=dynamic)):
        leaf = torch.linspace(-1, 2, 20, dtype=torch.float64).view(5, 4).clone()
        leaf.requires_grad_(gradients)
        x = (leaf * 1).t()
        y, _ = run(x)
        found = [y.detach(), x.detach()]
        if gradients:
            weight = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
            found += torch.autograd.grad(y, leaf, weight)
        results.append(found)
    torch.testing.assert_close(results[1], results[0], check_stride=True)
