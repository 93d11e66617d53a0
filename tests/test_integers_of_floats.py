"""Integers that compiled functions make of floats of data, beside eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

from tests.staged_backend import by_operators

INTEGERS: dict[str, Callable[[Tensor], int]] = {
    "int of a number": lambda x: int(x.item()),
    "int of a tensor": lambda x: int(x),
    "int of a computed number": lambda x: int(x.item() * 1.5 + 0.25),
    "trunc": lambda x: math.trunc(x.item()),
    "floor": lambda x: math.floor(x.item()),
    "ceil": lambda x: math.ceil(float(x)),
    "round": lambda x: round(x.item()),
}
NUMBERS = (0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -2.5, 2.999, -2.999, 1e15 + 0.5, -(2.0**61))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", INTEGERS)
def test_like_eager(name: str, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> Any:
        number = INTEGERS[name](x)
        return number, torch.ones(3, dtype=torch.int64) * number

    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    for value in NUMBERS:
        x = torch.tensor(value, dtype=dtype)
        found, expected = compiled(x), program(x)
        assert found[0] == expected[0] and type(found[0]) is int
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e30])
@pytest.mark.parametrize("first", [1.0, None])
def test_what_does_not_fit(value: float, first: float | None) -> None:
    """Of infinity and nan there is no integer; Python has others for all numbers."""

    def program(x: Tensor) -> Any:
        return int(x.item() * 1.0) + x.sum()

    compiled = weft.compile(program, backend=by_operators)
    if first is not None:
        assert compiled(torch.tensor(first)) == program(torch.tensor(first))
    outcomes = []
    for function in (compiled, program):
        try:
            outcomes.append(str(function(torch.tensor(value, dtype=torch.float64))))
        except (ValueError, OverflowError) as error:
            outcomes.append(repr(error))
    assert outcomes[0] == outcomes[1]


def test_places_and_sizes() -> None:
    """Of another rate in each call: a number of rows, an index and a chunk."""

    def program(x: Tensor, rate: Tensor) -> Any:
        kept = int(x.shape[0] * rate.item())
        return x[:kept].sum(0), x[round(rate.item() * 9)] * 2

    compiled = weft.compile(program, fullgraph=True)
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).view(10, 2)
    for rate in (0.5, 0.25, 0.8):
        given = torch.tensor(rate, dtype=torch.float64)
        for found, expected in zip(compiled(x, given), program(x, given), strict=True):
            torch.testing.assert_close(found, expected)
