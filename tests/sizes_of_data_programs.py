"""Programs whose sizes and numbers data decide, for any device: each takes ``x`` of (rows, 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {}


def program(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    PROGRAMS[function.__name__] = function
    return function


@program
def selected(x: Tensor) -> Any:
    y = x[x > 0]
    return y * 2 + y.sum(), y.numel()


@program
def selected_twice(x: Tensor) -> Any:
    y = x[x > 0]
    z = y[y < 1]
    return torch.cat([y, z]).softmax(0), z


@program
def numbers_read(x: Tensor) -> Any:
    n = x.abs().max().item()
    k = int(x.abs().sum())
    return x * n, n, torch.arange(k, device=x.device) * x.sum(), x.new_zeros(k, 3) + 1


@program
def places(x: Tensor) -> Any:
    rows, columns = torch.where(x > 0)
    return x[rows, columns].cumsum(0), rows + columns


@program
def written_rows(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    rows = (x.sum(1) > 0).nonzero()[:, 0]
    out[rows] = x[rows] @ x.new_ones(4, 4)
    return out, rows.shape[0]


@program
def experts(x: Tensor) -> Any:
    """Rows go to the function that their largest element says."""
    out = torch.zeros_like(x)
    choice = x.argmax(1)
    for k in range(4):
        rows = (choice == k).nonzero()[:, 0]
        out = out.index_add(0, rows, (x[rows] * (k + 1)).tanh())
    return out


@program
def unique(x: Tensor) -> Any:
    values, counts = (x * 2).round().unique(return_counts=True)
    return values.sin(), counts


@program
def until_none_is_left(x: Tensor) -> Any:
    todo, total, turns = x[:, 0], x.sum() * 0, 0
    while todo.numel() > 0:
        total = total + todo.sum()
        todo = todo[todo < todo.max()]
        turns += 1
    return total, turns


@program
def suppressed(x: Tensor) -> Any:
    order, keep = x[:, 0].argsort(descending=True), []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        rest = order[1:]
        order = rest[(x[rest] - x[i]).abs().sum(1) > 1.5]
    return torch.stack(keep)


@program
def in_a_branch(x: Tensor) -> Any:
    rows = x[x[:, 0] > 0]
    return rows.sum(0) * 2 if rows.numel() > 8 else x.sum(0)


IN_TRAINING = (selected, selected_twice, places, written_rows, experts)
"""Those whose results have gradients."""


def made(seed: int, rows: int, device: str = "cpu") -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def check(compiled: Callable[[Tensor], Any], function: Callable[[Tensor], Any], x: Tensor) -> None:
    """A call gives what eager does, numbers of the same classes."""
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.clone()), function(x.clone()), rtol=1e-4, atol=1e-4)


def check_training(
    compiled: Callable[[Tensor], Any], function: Callable[[Tensor], Any], x: Tensor
) -> None:
    """So do gradients of the first result."""
    got, want = x.clone().requires_grad_(), x.clone().requires_grad_()
    for called, given in ((compiled, got), (function, want)):
        result = called(given)
        first = result[0] if isinstance(result, tuple) else result
        first.square().sum().backward()
    torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-4)
