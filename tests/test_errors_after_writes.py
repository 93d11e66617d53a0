"""What raises for the values that it is given, in calls that write to an input: eager's error and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

RAISING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "//": lambda i, y: i // i,
    "%": lambda i, y: i % i,
    "fmod": lambda i, y: torch.fmod(i, i),
    "div": lambda i, y: torch.div(i, i, rounding_mode="trunc"),
    "a computed divisor": lambda i, y: y.long() % (i * 2),
    "a sum's remainder": lambda i, y: y.long().sum() % i,
    "linalg": lambda i, y: torch.linalg.inv(i.to(y.dtype).diag()),
    "a position": lambda i, y: y[i - len(y) - 1],
    "gather": lambda i, y: y.gather(0, i - 1),
}
PROGRAMS: dict[str, Callable[[Callable[..., Tensor], Tensor, Tensor], Any]] = {
    "after a write": lambda raising, i, y: (y.detach().mul_(0.5), y.sin(), raising(i, y))[1:],
    "before a write": lambda raising, i, y: (raising(i, y), y.detach().mul_(0.5), y.sin())[::2],
    "between writes": lambda raising, i, y: (
        y.detach().mul_(0.5), raising(i, y), y.detach().add_(1), y.exp())[1::2],
    "before a draw": lambda raising, i, y: (raising(i, y), F.dropout(y, 0.5)),
    "after a draw": lambda raising, i, y: (F.dropout(y, 0.5), raising(i, y)),
    "before a matmul of what is written": lambda raising, i, y: (
        raising(i, y), y.detach().mul_(0.5), y.view(2, 4) @ y.view(4, 2))[::2],
    "after a matmul of what is written": lambda raising, i, y: (
        y.detach().mul_(0.5), y.view(2, 4) @ y.view(4, 2), raising(i, y))[1:],
    "of earlier values": lambda raising, i, y: (
        z := y.sin(), y.detach().mul_(0.5), raising(i, z), z)[2:],
}  # fmt: skip
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "no gradients": lambda y: y,
    "a leaf": lambda y: y.requires_grad_(),
    "a result": lambda y: y.requires_grad_() * 1,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("raising", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_errors(
    program: Callable[..., Any], raising: Callable[..., Tensor], kind: Callable[[Tensor], Tensor]
) -> None:
    def whole(i: Tensor, y: Tensor) -> Any:
        return program(raising, i, y)

    compiled = weft.compile(whole)
    for number in (1, 0, 1):
        expected, found = (_outcome(f, number, kind) for f in (whole, compiled))
        assert found[0] == expected[0]
        assert (found[0] is None) == (number == 1)
        torch.testing.assert_close(found[1:], expected[1:])


@pytest.mark.parametrize("raising", RAISING.values(), ids=RAISING)
def test_gradients_off_around_the_call(raising: Callable[..., Tensor]) -> None:
    def whole(i: Tensor, y: Tensor) -> Any:
        with torch.enable_grad():
            z = y.sin()
            y.detach().mul_(0.5)
            return raising(i, z), z

    compiled = weft.compile(whole)
    for number in (1, 0, 1):
        with torch.no_grad():
            expected, found = (_outcome(f, number, KINDS["a leaf"]) for f in (whole, compiled))
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:])


def _outcome(function: Callable[..., Any], number: int, kind: Any) -> tuple[Any, ...]:
    y = kind(torch.linspace(2, 3, 8))
    torch.manual_seed(0)
    error, result = None, None
    try:
        result = function(torch.full((8,), number), y)
    except (RuntimeError, IndexError) as caught:
        error = type(caught), str(caught)
    return error, result, y, torch.rand(2)
