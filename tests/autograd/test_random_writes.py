"""Tensors in which random numbers replace what had a gradient: none flows back, and none is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Draw = Callable[[torch.Tensor], Any]

IN_PLACE: dict[str, Draw] = {
    "bernoulli_": lambda y: y.bernoulli_(0.5),
    "bernoulli_ by a tensor": lambda y: y.bernoulli_(torch.full((3, 4), 0.4)),
    "bernoulli_ of a transposed tensor": lambda y: y.t().bernoulli_(0.5),
    "cauchy_": lambda y: y.cauchy_(),
    "exponential_": lambda y: y.exponential_(),
    "geometric_": lambda y: y.geometric_(0.4),
    "log_normal_": lambda y: y.log_normal_(),
    "normal_": lambda y: y.normal_(),
    "normal_ of a row": lambda y: y[0].normal_(2.0, 3.0),
    "random_": lambda y: y.random_(5),
    "uniform_": lambda y: y.uniform_(),
}


def program_of(draw: Draw) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        draw(y)
        return y, y * x

    return program


@pytest.mark.parametrize("name", IN_PLACE)
def test_as_in_eager(name: str) -> None:
    program = program_of(IN_PLACE[name])
    found = []
    for function in (program, weft.compile(program)):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        results = function(x)
        sum(result.sum() for result in results).backward()
        found.append((*results, x.grad))
        assert all(result.requires_grad for result in results)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
