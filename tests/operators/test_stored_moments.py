"""Moments of what the same loop stores, at any scale of float32, beside float64.

Squares that leave float32's range make a run of steps be repeated, which then reads what was stored: a result
may lie where an operand was.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.native

T = torch.Tensor
Function = Callable[[T, T], tuple[T, ...]]


def normalized(z: T, dims: int = 1) -> T:
    return F.layer_norm(z, z.shape[-dims:], eps=0.0)


def added(x: T, y: T) -> tuple[T, ...]:
    z = x + y
    return z, normalized(z)


def kept_in_a_row(x: T, y: T) -> tuple[T, ...]:
    return (normalized((x - y) * 0.5),)


def over_two_dims(x: T, y: T) -> tuple[T, ...]:
    """The loops over the two stay two, since ``y`` lies the other way around."""
    factors = torch.arange(1.0, 4.0, dtype=x.dtype)[:, None]
    z = x[:, None] + y.t().contiguous().t()[:, None] * factors
    return z, normalized(z, 2)


def two_of_them(x: T, y: T) -> tuple[T, ...]:
    a, b = x + y, x - y
    return a, b, normalized(a) + normalized(b)


def written(x: T, y: T) -> tuple[T, ...]:
    x.add_(y)
    return x, normalized(x)


def written_to_both(x: T, y: T) -> tuple[T, ...]:
    x.sub_(y)
    y.copy_(normalized(x))
    return x, y


PROGRAMS = (added, kept_in_a_row, over_two_dims, two_of_them, written, written_to_both)


def rows(length: int, scale: float) -> tuple[T, T]:
    """Rows about zero, far from it, with an outlier at either end, and one that is much smaller."""
    x, y = torch.randn(5, length), torch.randn(5, length)
    x[1] += 1000
    x[2, 0], x[3, -1] = 1e4, 1e4
    x[4], y[4] = x[4] * 1e-4, y[4] * 1e-4
    return x * scale, y * scale


@pytest.mark.parametrize("scale", [1.0, 1e24, 1e-24])
@pytest.mark.parametrize("length", [8, 37, 128, 700])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_beside_float64(function: Function, length: int, scale: float) -> None:
    x, y = rows(length, scale)
    wide = x.double(), y.double()
    with torch.no_grad():
        results, exact = weft.compile(function)(x, y), function(*wide)
    for result, wanted in zip(results, exact, strict=True):
        error = (result.double() - wanted).abs() / wanted.abs().amax(-1, keepdim=True)
        assert error.max() < 1e-3


@pytest.mark.parametrize("scale", [1.0, 1e24, 1e-24])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_rounded_before(dtype: torch.dtype, scale: float) -> None:
    def function(x: T, y: T) -> tuple[T, T]:
        z = (x + y).to(dtype)
        return z, normalized(z.float())

    x, y = rows(300, scale)
    with torch.no_grad():
        z, result = weft.compile(function)(x, y)
    assert torch.equal(z, (x + y).to(dtype))
    exact = normalized(z.double())
    assert ((result.double() - exact).abs() <= 1e-3 * exact.abs().amax(-1, keepdim=True)).all()
