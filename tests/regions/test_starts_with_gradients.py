"""What a loop begins with has gradients; what its iterations leave has none, whatever their number is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

Program = Callable[[Tensor, Tensor, int], Any]


def replaced(x: Tensor, y: Tensor, n: int) -> Any:
    v = x * 1
    for _ in range(25):
        w = 2 - v
        v = torch.ones_like(w)
    return v, w, w - v


def dropped(x: Tensor, y: Tensor, n: int) -> Any:
    v, h = x, y * 1
    for _ in range(n % 5 + 3):
        with torch.no_grad():
            v = F.dropout(h, 0.5)
            h.mul_(2.0)
    return v, h


def passed_on(x: Tensor, y: Tensor, n: int) -> Any:
    a, b, c = x * 1, y * 2, x * 3
    for _ in range(25):
        a, b, c = b + 1, c * 2, c.detach()
    return a, b, c


def nested(x: Tensor, y: Tensor, n: int) -> Any:
    v = x
    for _ in range(n % 5 + 20):
        for _ in range(30):
            v = F.relu(v.detach()) * 0.5
        w = v + y
    return v, w


def kept_by_none(x: Tensor, y: Tensor, n: int) -> Any:
    v = x
    for _ in range(n):
        v = v.detach() * 0.5
    return v + y


def kept_by_every(x: Tensor, y: Tensor, n: int) -> Any:
    v, h = x, y
    for _ in range(25):
        v, h = h * 0.5, v + 1
    return v, h


@pytest.mark.parametrize(
    "program", [replaced, dropped, passed_on, nested, kept_by_none, kept_by_every]
)
def test_like_eager(program: Program) -> None:
    compiled = weft.compile(program)
    for n in (1, 6, 7):
        found = []
        for call in (program, compiled):
            torch.manual_seed(0)
            x, y = (torch.rand(7, requires_grad=True) for _ in range(2))
            results = call(x, y, n)
            results = results if isinstance(results, tuple) else (results,)
            tracked = [r.sum() for r in results if r.requires_grad]
            given = torch.autograd.grad(sum(tracked), [x, y], allow_unused=True) if tracked else ()
            facts = [(r.requires_grad, r.is_leaf) for r in results]
            found.append((facts, [*results, *given]))
        assert found[1][0] == found[0][0]
        torch.testing.assert_close(found[1][1], found[0][1])
