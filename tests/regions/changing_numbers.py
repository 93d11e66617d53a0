"""Programs whose loops and branches take numbers that are others in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def stepped(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for _ in range(20):
        x = x - a * torch.sin(x) + b
    return x


def until_close(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    error = x.abs().max()
    while error > a:
        x = x * 0.7
        error = x.abs().max()
    return x + b


def until_close_as_numbers(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    error = x.abs().max().item()
    while error > a:
        x = x * 0.7
        error = x.abs().max().item()
    return x * b, error


def until_a_step_is_small(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, int]:
    for i in range(50):
        y = x * 0.8
        if float((y - x).abs().max()) < a * b * 2:
            break
        x = y + i * 0
    return x, i


def tolerance_that_grows(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    while x.abs().max() > a:
        x = x * 0.7
        a = a * 1.01
    return x - b, a


def sides(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    if x.sum() > a:
        y = x * b
    else:
        y = x - 2 * b
    return y


def number_by_side(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float, float]:
    one, s = 1.0, a
    if x.sum() > 0:
        one, s = b, a * 2
    return x * s, s, one


def nested(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for _ in range(16):
        for k in range(16):
            x = x - a * torch.cos(x) * k
        if x.sum() > b:
            x = x * b
    return x


def scheduled(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for i in range(20):
        x = x - (a * 0.9**i) * torch.sin(x) + b / (i + 1)
        if x.abs().max() < a * 2:
            break
    return x


def decayed(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    for _ in range(20):
        x = x - a * torch.sin(x)
        a = a * b
    return x, a


def time_goes_on(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    t = 0.0
    for i in range(20):
        x = x + a * torch.sin(x + t) - i * b
        t += a
    return x, t


def divided(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    t = 1.0
    for _ in range(20):
        x = torch.cos(x + t / b) + t / (x.abs() + 1)
        t = t / (a + 1)
    return x, t


def powers(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for i in range(20):
        x = torch.cos(x) * a**i + (-b) + abs(a) + max(a, b)
    return x


def in_place(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for i in range(20):
        x.mul_(a)
        x.add_(torch.sin(x), alpha=-b)
        x[i % 4] = b
    return x


def operators(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for _ in range(20):
        x = torch.clamp(x, min=-a, max=b * 3)
        x = torch.where(x > a, x - a, x + b / 3)
        x = torch.lerp(x, x.cos(), a) + torch.full_like(x, b)
        x = torch.addcmul(x, x, x, value=b)
    return x


def appended(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    found = []
    for _ in range(20):
        x = torch.sin(x) * a - b
        found.append(x)
    return torch.stack(found)


def read_before(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    c = x.sum().item()
    for _ in range(20):
        x = x * 0.5 + c * a
        if x.max() > c:
            x = x - b
    return x


def returned_early(x: torch.Tensor, a: float, b: float) -> tuple[torch.Tensor, float]:
    for _ in range(30):
        x = x * 0.8
        if x.abs().max() < a:
            return x, a
    return x, b


def counter_beside(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    for i in range(20):
        if i > a * 30:
            x = x + b
        x = torch.sin(x)
    return x


FLOATS: tuple[Callable[..., Any], ...] = (
    stepped,
    until_close,
    until_close_as_numbers,
    until_a_step_is_small,
    tolerance_that_grows,
    sides,
    number_by_side,
    nested,
    scheduled,
    decayed,
    time_goes_on,
    divided,
    powers,
    in_place,
    operators,
    appended,
    read_before,
    returned_early,
    counter_beside,
)


def whole_values(x: torch.Tensor, n: int) -> torch.Tensor:
    size = x.shape[0]
    for i in range(20):
        x = x * 0.5 + n
        if x.max() > n:
            x = x - n * i + size
    return x


def counted_on(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
    k = n
    for _ in range(20):
        x = torch.sin(x) + k
        k = k + n
    return x, k


def whole_by_side(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
    m = n
    if x.sum() > 0:
        m = n + 1
    return x * m, m


def compared_with_the_counter(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(20):
        if i < n:
            x = x + 1
        x = torch.cos(x) / n
    return x


INTEGERS: tuple[Callable[..., Any], ...] = (
    whole_values,
    counted_on,
    whole_by_side,
    compared_with_the_counter,
)
