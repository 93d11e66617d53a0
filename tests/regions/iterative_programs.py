"""Iterations until something settles, and loops whose counters are numbers: programs for any device."""

from __future__ import annotations

from typing import Any

import torch


def jacobi(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> Any:
    """Iterations for ``a x = b`` until no element moves by more than ``tolerance``."""
    diagonal = a.diagonal()
    x, before = torch.zeros_like(b), torch.ones_like(b)
    steps = 0
    while (x - before).abs().max() > tolerance:
        before = x
        x = (b - (a * x).sum(1) + diagonal * x) / diagonal
        steps += 1
    return x, steps


def power_iteration(a: torch.Tensor, tolerance: float) -> torch.Tensor:
    """The direction of the greatest eigenvalue, by products of a matrix and a column."""
    x = torch.ones(a.shape[0], 1, dtype=a.dtype, device=a.device)
    error = torch.ones((), dtype=a.dtype, device=a.device)
    while error.sum() > tolerance:
        following = a @ x
        following = following / following.norm()
        error = (following - x).square()
        x = following
    return x


def sinkhorn(kernel: torch.Tensor, tolerance: float) -> torch.Tensor:
    u = torch.ones(kernel.shape[0], device=kernel.device)
    v = torch.ones(kernel.shape[1], device=kernel.device)
    for _ in range(60):
        before = u
        u = 1 / (kernel @ v)
        v = 1 / (kernel.t() @ u)
        if (u - before).abs().max() < tolerance:
            break
    return u[:, None] * kernel * v


def inverse_of_matrix(a: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Newton's iteration with products of square matrices."""
    unit = torch.eye(a.shape[0], device=a.device)
    x = a.t() / (a.abs().sum(0).max() * a.abs().sum(1).max())
    while (unit - a @ x).abs().max() > tolerance:
        x = x @ (2 * unit - a @ x)
    return x


def down_to_one(n: torch.Tensor) -> torch.Tensor:
    """Integers that move together: the greatest number decides for all of them."""
    while n.max() > 1:
        n = torch.where(n.sum() % 2 == 0, n // 2, n.flip(0) - 1)
    return n


def bounded_walk(x: torch.Tensor) -> torch.Tensor:
    """A branch, and a loop of rows, in a loop that data ends."""
    out = torch.zeros(20, x.shape[0], device=x.device)
    for i in range(20):
        if x.sum() > 0:
            x = x - x.flip(0).mean() * 2.5
        else:
            x = x.softmax(0) * 3 - 1
        out[i] = x
        if x.abs().max() > 1e3:
            break
    return out


def dominant(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    a = torch.rand(size, size, generator=generator, dtype=dtype) / size
    return a + 2 * torch.eye(size, dtype=dtype)


# -- numbers that the loop counts -------------------------------------------------------------------------


def steps_taken(x: torch.Tensor) -> Any:
    steps, factor = 0, 1.0
    while x.abs().max() > 1:
        x, factor = x * 0.5, factor * 0.5
        steps += 1
    return x * factor, steps, factor


def counted_tensor(x: torch.Tensor) -> Any:
    """The counter lies on the CPU, wherever ``x`` is."""
    number = torch.tensor(0)
    for _ in range(50):
        x = x * 0.5
        number = number + 1
        if x.sum() < 1:
            break
    return x, number


def rows_up_to_a_counter(x: torch.Tensor) -> torch.Tensor:
    place = torch.tensor(0)
    out = torch.zeros_like(x)
    while place < x.shape[0] - 1:
        out = out + x[place] * place
        place = place + 1
    return out


# -- steps and sizes that iterations differ in ------------------------------------------------------------


def accumulated(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    total = x[0] * 0
    for i in range(start, stop, step):
        total = total + torch.sin(x[1] * i)
    return total


def written(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(start, stop, step):
        out[i] = x[i] * 2 + i
        x[i] += 1
    return out


def until(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    total = x[0] * 0
    for i in range(start, stop, step):
        total = total + x[i]
        if total.sum() > 20:
            break
    return total


def prefixes(x: torch.Tensor, start: int, stop: int, step: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(start, stop, step):
        out[i] = x[:i].sum(0) + torch.cat([x[:i], x[i + 1 :]]).mean(0)
    return out
