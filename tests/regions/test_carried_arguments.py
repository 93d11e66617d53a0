"""Arguments that a loop carries with sizes that change, or that a branch gives: read by calls of Python.

What a kernel reads and what a call is given are one tensor in every iteration, whichever step made it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch import Tensor

pytestmark = pytest.mark.native


def masked(x: Tensor) -> Tensor:
    while x.shape[0] > 2:
        least = x[x.argmin()]
        if least > 0.6:
            return x * 2
        x = x[x > least]
    return x


def at_places(x: Tensor) -> tuple[Tensor, Tensor]:
    seen = x.sum() * 0
    while x.numel() > 2:
        if x.min() > 0.7:
            break
        places = torch.nonzero(x > x.min()).squeeze(1)
        seen = seen + torch.unique(x * 4 // 1).sum()
        x = x[places]
    return seen, x


def put_back(x: Tensor) -> Tensor:
    """Half of the iterations go on with the argument as it was given."""
    now, count = x[x > 0.1], 0
    while count < 6:
        if now.numel() < 4:
            now = x
        else:
            now = now[now > now.mean()]
        count += 1
    return now


def chosen(x: Tensor) -> Tensor:
    y = x if x.sum() > 4 else x[x > 0.5]
    return torch.unique(y * 8 // 1) + y[y > 0.3].sum()


def chosen_other(x: Tensor) -> Tensor:
    y = x[x > 0.5] if x.sum() > 4 else x
    return torch.unique(y * 8 // 1) + y[y > 0.3].sum()


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(
    "program", [masked, at_places, put_back, chosen, chosen_other], ids=lambda p: p.__name__
)
def test_as_in_eager(program: Callable[[Tensor], Tensor], negated: bool) -> None:
    compiled = weft.compile(program)
    for seed, size in ((0, 9), (1, 14), (2, 5), (3, 25), (4, 2), (5, 9)):
        with torch.no_grad():
            x = torch.rand(size, generator=torch.Generator().manual_seed(seed))
            x = torch._neg_view(-x) if negated else x
            torch.testing.assert_close(compiled(x), program(x))
