"""Padded and joined tensors of varying sizes, read by several kernels that become one with theirs."""

from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "constant": lambda x: F.pad(x, (1, 2)),
    "rows": lambda x: F.pad(x, (0, 0, 2, 1)),
    "cut": lambda x: F.pad(x, (-1, 2)),
    "reflected": lambda x: F.pad(x, (1, 1), mode="reflect").roll(-2, 0),
    "replicated": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "joined": lambda x: torch.cat([x, x[:, :3] * 2], 1),
    "sliced": lambda x: x[:, 2:] + 1,
}


@pytest.mark.parametrize("name", MADE)
def test_pointwise_readers(name: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = MADE[name](x)
        return y * 2, y > 0

    compiled = weft.compile(function, dynamic=True, fullgraph=True)
    for size in ((7, 5), (4, 9)):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("name", MADE)
def test_readers_of_rows(name: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = MADE[name](x)
        z = y * 2
        y[y > 0] = 0.5
        return y, z, y.heaviside(z), y.softmax(1)

    compiled = weft.compile(function, dynamic=True, fullgraph=True)
    for size in ((7, 5), (4, 9)):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), function(x))
