"""Leaves that get other memory, ``w.data = value``, between what was computed with them and its backward.

Eager reads what autograd has saved: the leaf itself, which then has the new memory, or a view of it
(``linear`` saves ``w.t()``), which keeps the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor


def linear(x: Tensor, w: Tensor) -> Any:
    y = F.linear(x, w)
    w.data = w.data * 2
    return y


def used_again(x: Tensor, w: Tensor) -> Any:
    y = F.linear(x, w).sin()
    w.data = w.data.cos()
    return y, F.linear(x, w)


def of_rows(x: Tensor, w: Tensor) -> Any:
    y = (w[0] * x).sum(0)
    w.data = w.data + 1
    return y


def itself(x: Tensor, w: Tensor) -> Any:
    y = x * w
    w.data = w.data * 3
    return y


def by_matmul(x: Tensor, w: Tensor) -> Any:
    y = (x @ w).exp()
    w.data = torch.zeros_like(w)
    return y


def the_input(x: Tensor, w: Tensor) -> Any:
    y = x.t() @ w
    x.data = x.data * 2
    return y


def _exchange(w: Tensor) -> None:
    w.data = w.data * 2


def by_a_function_called(x: Tensor, w: Tensor) -> Any:
    y = F.linear(x, w)
    _exchange(w)
    return y


def behind_a_break(x: Tensor, w: Tensor) -> Any:
    y = F.linear(x, w)
    time.sleep(0)
    w.data = w.data * 2
    return y


PROGRAMS = (
    linear, used_again, of_rows, itself, by_matmul, the_input, by_a_function_called, behind_a_break
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "varying"])
def test_gradients_are_eagers(program: Callable[..., Any], dynamic: bool) -> None:
    found = []
    for run in (program, weft.compile(program, dynamic=dynamic)):
        for size in (3, 4):
            x = torch.linspace(-1, 1, size * size, dtype=torch.float64).view(size, size)
            w = x.flip(1).sin().requires_grad_()
            x.requires_grad_()
            results = run(x, w)
            total = sum(y.sum() for y in (results if isinstance(results, tuple) else (results,)))
            found.append((total, w.detach(), *torch.autograd.grad(total, (x, w))))
    half = len(found) // 2
    torch.testing.assert_close(found[half:], found[:half])
