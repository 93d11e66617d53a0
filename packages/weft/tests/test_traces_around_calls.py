"""``torch.jit.trace`` around compiled code records the operators of the code as written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import weft
from torch import Tensor


@pytest.fixture(autouse=True)
def _without_deprecations() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows(x: Tensor) -> Tensor:
    return x.relu() * 2 + x.shape[0]


def cumulative(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[0])
    for row in x:
        total = total * 0.5 + row
    return total


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 1
    return y.add_(x)


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("function", [rows, cumulative, written])
def test_a_trace_of_a_compiled_function(
    function: Callable[[Tensor], Tensor], called_before: bool
) -> None:
    compiled = weft.compile(function)
    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    if called_before:
        torch.testing.assert_close(compiled(x), function(x))
    traced = torch.jit.trace(compiled, x, check_trace=False)
    for other in (x, x * -3 + 1):
        torch.testing.assert_close(traced(other), function(other), rtol=0, atol=0)
    torch.testing.assert_close(compiled(x - 1), function(x - 1))  # compiled again behind the trace


@pytest.mark.parametrize("called_before", [False, True])
def test_a_trace_of_a_compiled_module(called_before: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    compiled = weft.compile(module)
    x = torch.randn(5, 3)
    if called_before:
        compiled(x)
    traced = torch.jit.trace(compiled, x, check_trace=False)
    other = torch.randn(5, 3)
    torch.testing.assert_close(traced(other), module(other), rtol=0, atol=0)


def test_a_compiled_part_of_what_is_traced() -> None:
    scaled = weft.compile(lambda x: x.sin() * 2)
    scaled(torch.ones(3))

    def outer(x: Tensor) -> Tensor:
        return scaled(x + 1) - x

    traced = torch.jit.trace(outer, torch.ones(3), check_trace=False)
    x = torch.tensor([0.5, -2.0, 7.0])
    torch.testing.assert_close(traced(x), (x + 1).sin() * 2 - x)
