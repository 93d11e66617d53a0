"""Loops on a GPU, beside eager there: counters on the CPU, sizes of iterations, loops of one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from tests.regions import iterative_programs as programs

pytestmark = pytest.mark.gpu

RANGES = ((3, 20, 1), (4, 60, 2), (5, 77, 3), (2, 118, 6))
MANY = 200
"""Elements of which several threads hold one each, and more than one part has several rows."""


def assert_as_in_eager(
    function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], tolerance: float = 1e-4
) -> None:
    """Five calls of one graph (recorded, then replayed) give eager's results, with its effects."""
    weft.reset()  # a float that has changed is a symbol, which loops do not take
    log = weft.CompileLog()
    compiled = weft.compile(function, fullgraph=True)
    with torch.no_grad(), weft.observe(log):
        for _ in range(5):
            theirs, mine = make(), make()
            wanted, got = function(*theirs), compiled(*mine)
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    (report,) = log.graphs
    assert report.eager_reason is None and report.kernel_count > 0


@pytest.mark.parametrize(
    "function", [programs.steps_taken, programs.counted_tensor, programs.rows_up_to_a_counter]
)
def test_numbers_of_the_cpu(function: Callable[..., Any]) -> None:
    x = torch.rand(9, 7, generator=torch.Generator().manual_seed(1)).cuda() * 40
    assert_as_in_eager(function, lambda: (x.clone(),))


@pytest.mark.parametrize("range_", RANGES)
@pytest.mark.parametrize(
    "function", [programs.accumulated, programs.written, programs.until, programs.prefixes]
)
def test_ranges(function: Callable[..., Any], range_: tuple[int, int, int]) -> None:
    def make() -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(1)
        return (torch.rand(120, 4, generator=generator).cuda(), *range_)

    assert_as_in_eager(function, make)


def test_ranges_that_change() -> None:
    compiled = weft.compile(programs.prefixes, fullgraph=True)
    x = torch.rand(120, 4, device="cuda")
    with torch.no_grad():
        for numbers in RANGES:
            torch.testing.assert_close(compiled(x, *numbers), programs.prefixes(x, *numbers))


@pytest.mark.parametrize("size", [1, 5, 33, 70, MANY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jacobi(size: int, dtype: torch.dtype) -> None:
    a = programs.dominant(size, dtype).cuda()
    b = torch.linspace(-1, 1, size, dtype=dtype, device="cuda")
    for tolerance in (2.0, 0.6, 1e-5):
        assert_as_in_eager(programs.jacobi, lambda t=tolerance: (a, b, t))


@pytest.mark.parametrize("size", [4, 33, MANY])
@pytest.mark.parametrize(
    "function", [programs.power_iteration, programs.sinkhorn, programs.inverse_of_matrix]
)
def test_matmuls(function: Callable[..., Any], size: int) -> None:
    a = programs.dominant(size)
    a = ((a + a.t()) * 0.3).cuda()
    assert_as_in_eager(function, lambda: (a, 1e-4), tolerance=1e-3)


@pytest.mark.parametrize("highest", [1, 50])
@pytest.mark.parametrize("size", [7, 90, 3000])
def test_integers(size: int, highest: int) -> None:
    generator = torch.Generator().manual_seed(0)
    n = torch.randint(1, highest + 1, (size,), generator=generator).cuda()
    assert_as_in_eager(programs.down_to_one, lambda: (n,))


@pytest.mark.parametrize("scale", [0.1, 1e3, -1.0])
def test_branches(scale: float) -> None:
    x = torch.linspace(-0.5, 1, 24, device="cuda") * scale
    assert_as_in_eager(programs.bounded_walk, lambda: (x,))
