"""Powers and roots of floats that data gives: Python's own values and errors, in one graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture

OPTIONS = CaptureOptions(assume_decisions=True)
VALUES = (2.5, 0.7, 0.0, -0.0, -1.5, -3.0, 1e-300, 1e200, -1e200, math.inf, -math.inf, math.nan)
EXPONENTS = (-2.5, -1, -0.8, 0, 0.25, 0.5, 1.5, 2, 3.0, 4, 700, math.inf)
BASES = (0.9, 1, 1.5, 2, 1e300, 0, -2.0)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ArithmeticError, ValueError) as error:
        return repr(error)


def check(function: Callable[[torch.Tensor, float], Any], value: float) -> int:
    """How many graphs there are for the first call of two; their results are eager's."""
    x = torch.tensor(value, dtype=torch.float64)
    compiled = capture(function, options=OPTIONS)
    counts = []
    for _ in range(2):
        before = x.clone()
        found = outcome(compiled, x, before)
        if not isinstance(found, str):
            counts.append(len(found.graphs))
            found = found.result
        wanted = outcome(function, x, before)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    return counts[0] if counts else 0


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_of_a_number(exponent: float) -> None:
    for value in VALUES:
        check(lambda x, y: (x.item() ** exponent, y * (x.item() ** exponent)), value)


@pytest.mark.parametrize("base", BASES)
def test_a_constant_to_the_power_of_a_number(base: float) -> None:
    for value in VALUES:
        check(lambda x, y: (base ** x.item(), y * (base ** x.item())), value)


def test_what_raises_nothing_is_one_graph() -> None:
    for function, value in itertools.product(
        (
            lambda x, y: y * (1 - 0.999 ** x.item()),
            lambda x, y: y * x.item() ** -0.8,
            lambda x, y: y / math.sqrt(x.item()),
            lambda x, y: y * (math.sqrt(1 - 0.999 ** x.item()) / (1 - 0.9 ** x.item())),
            lambda x, y: y * (0.1 / ((x.item() ** 2 + x.float().item() ** 2) ** 0.5 + 1e-6)),
        ),
        (1.0, 7.0, 1000.0),
    ):
        assert check(function, value) == 1


@pytest.mark.parametrize("bound", [2.0, 1e-3, 0.0, -1.0])
def test_quotients_by_the_greater_of_two(bound: float) -> None:
    """``1 / max(1.0, x.item())`` never raises, whatever data are; one by what may be zero is CPython's."""
    for value in VALUES:
        for function in (
            lambda x, y: y * (0.5 / max(bound, x.item())),
            lambda x, y: y * (x.item() / max(x.item() * 2, bound)),
            lambda x, y: y * (0.5 / max(x.item(), y.abs().item(), bound)),
        ):
            count = check(function, value)
            assert bound <= 0 or count == 1


def test_a_norm_needs_no_check() -> None:
    """A sum of squares of what float32 holds is no negative number, and none too large."""

    def function(x):
        total = 0.0
        for row in x:
            total += row.norm().item() ** 2
        return x * (1.0 / (total**0.5 + 1e-6)), total

    compiled = capture(function, options=OPTIONS)
    for scale in (1.0, 0.0, 1e30, math.inf, math.nan):
        x = torch.arange(6.0).view(2, 3) * scale
        result = compiled(x)
        torch.testing.assert_close(result.result, function(x), equal_nan=True)
        assert len(result.graphs) == (scale == 1.0)


def clipped(module, optimizer, x, limit):
    """As clipping was written before torch had it: by the gradients' memory, if the norm is too large."""
    optimizer.zero_grad()
    module(x).pow(2).mean().backward()
    total = 0.0
    for parameter in module.parameters():
        total += parameter.grad.data.norm(2).item() ** 2
    total = total**0.5
    coefficient = limit / (total + 1e-6)
    if coefficient < 1:
        for parameter in module.parameters():
            parameter.grad.data.mul_(coefficient)
    optimizer.step()
    return total


def test_gradients_clipped_by_a_number() -> None:
    outcomes = []
    for wrap in (lambda function: function, lambda function: capture(function, options=OPTIONS)):
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        step = wrap(clipped)
        for limit in (0.1, 0.1, 10.0, 0.05):
            found = step(module, optimizer, torch.randn(5, 4), limit)
            outcomes.append(found if isinstance(found, float) else found.result)
        outcomes.append([p.detach().clone() for p in module.parameters()])
    half = len(outcomes) // 2
    torch.testing.assert_close(outcomes[half:], outcomes[:half])
