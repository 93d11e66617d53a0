"""``grid_sample`` of every mode with its gradients, beside eager."""

from __future__ import annotations

import itertools

import pytest
import torch
from comparison import check, with_gradients
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen

PADDINGS = ("zeros", "border", "reflection")


def inputs_of(rank: int, out: int = 4) -> list[torch.Tensor]:
    """A tensor and a grid that reaches out of it, but not to where rounding decides."""
    x = torch.randn(2, 3, *range(5, 5 + rank), dtype=torch.float64)
    return [x, torch.rand(2, *range(out, out + rank), rank, dtype=torch.float64) * 5 - 2.5]


CASES = [
    *itertools.product((2,), ("bilinear",), PADDINGS, (False, True)),
    *itertools.product((2,), ("nearest", "bicubic"), ("zeros", "reflection"), (False,)),
    *itertools.product((3,), ("bilinear",), PADDINGS, (False,)),
    (2, "bicubic", "border", True),
    (3, "nearest", "reflection", True),
    (3, "bilinear", "reflection", True),
]


@pytest.mark.parametrize(("rank", "mode", "padding", "corners"), CASES)
def test_values_and_gradients(
    codegen: CppCodegen, rank: int, mode: str, padding: str, corners: bool
) -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, corners)

    schedule = check(codegen, with_gradients(function), [inputs_of(rank)])
    assert not schedule.fallbacks


@pytest.mark.parametrize("rank", [2, 3])
def test_symbolic_sizes(codegen: CppCodegen, rank: int) -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, "bilinear", "reflection", False)

    samples = [inputs_of(rank, out) for out in (4, 9, 2)]
    places = range(1, rank + 1)
    check(codegen, with_gradients(function), samples[:1], symbolic=True, dynamic=places)
    check(codegen, function_of_two(function), samples, symbolic=True, dynamic=places)


def function_of_two(function: object) -> object:
    def both(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (function(x, grid),)  # type: ignore[operator]

    return both


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("rank", [2, 3])
def test_places_that_are_no_numbers(codegen: CppCodegen, rank: int, padding: str) -> None:
    x, grid = inputs_of(rank)
    single = [x.float(), grid.float()]
    single[1].view(-1)[:7] = torch.tensor([torch.nan, 1.0, -1.0, 1e9, -1e9, 0.0, torch.nan])

    def function(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(F.grid_sample(x, grid, m, padding, True) for m in ("nearest", "bilinear"))

    check(codegen, function, [single], tolerance=1e-5)


def test_only_the_wanted_gradient(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid.detach(), align_corners=False).sum(1)

    def gradient(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaf = x.detach().requires_grad_()
        result = function(leaf, grid)
        return torch.autograd.grad(result, leaf, torch.ones_like(result))

    assert not check(codegen, gradient, [inputs_of(2)]).fallbacks
