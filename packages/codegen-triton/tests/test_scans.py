"""Cumulative sums, products, extrema and logarithms of sums, along any dimension; beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import check
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from weft_codegen_triton import TritonCodegen

Function = Callable[[torch.Tensor], Any]

CUMULATIVE: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "sum": torch.cumsum,
    "product": torch.cumprod,
    "logarithm of a sum": torch.logcumsumexp,
    "maximum": torch.cummax,
    "minimum": torch.cummin,
}


@pytest.fixture
def short(short_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so short that rows have several, and rows of 64 elements pieces."""
    splitting = sys.modules["weft_loop_ir.schedule.split_scans"]
    monkeypatch.setattr(splitting, "MIN_PIECE", 32)
    monkeypatch.setattr(splitting, "ALIGNMENT", 4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int32,
     torch.int64, torch.bool],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dtypes(codegen: TritonCodegen, dtype: torch.dtype, dim: int) -> None:
    x = (torch.randn(5, 3, 7) + 1).to(dtype)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(dim), (x * 1).cumprod(dim), *x.cummax(dim), *x.cummin(dim)

    assert check(codegen, program, x).extern_count == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int8], ids=str)
def test_a_sum_in_another_dtype(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.randn(4, 50) * 3
    for program in (lambda x: x.cumsum(1, dtype=dtype), lambda x: x.to(dtype).cumsum(0)):
        assert check(codegen, program, x).extern_count == 0


@seed(8)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(sorted(CUMULATIVE)),
    size=st.lists(st.sampled_from([1, 2, 3, 16, 17, 33, 65]), min_size=1, max_size=3),
    dim=st.integers(0, 2),
    layout=st.sampled_from(["plain", "turned", "strided", "expanded", "reversed"]),
    special=st.sampled_from([None, float("nan"), float("inf"), float("-inf"), -0.0]),
    numbers=st.integers(0, 1000),
)
@pytest.mark.usefixtures("short")
def test_any_sizes_and_layouts(
    codegen: TritonCodegen,
    name: str,
    size: list[int],
    dim: int,
    layout: str,
    special: float | None,
    numbers: int,
) -> None:
    while torch.Size(size).numel() > 1_000:
        size = size[:-1]
    generator = torch.Generator().manual_seed(numbers)
    x = torch.randint(-2, 3, (*size, 2), generator=generator).float() / 2
    if special is not None:
        x.view(-1)[numbers % x.numel()] = special
    along = CUMULATIVE[name]
    view = _VIEWS[layout]
    dim %= len(size)
    check(codegen, lambda x: along(view(x) * 1, dim), x)


_VIEWS: dict[str, Function] = {
    "plain": lambda x: x[..., 0].contiguous(),
    "turned": lambda x: x[..., 0].contiguous().transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda x: x[..., 1],
    "expanded": lambda x: x[:1, ..., 0].expand(x.shape[:-1]),
    "reversed": lambda x: x[..., 0].flip(0),
}


def _along(function: Callable[[torch.Tensor, int], Any], dim: int) -> Function:
    return lambda x: function(x, dim)


def _inverse(extremum: Callable[[torch.Tensor, int], Any]) -> Function:
    return lambda x: 1 / extremum(x, 1)[0]


def test_zeros_keep_their_signs(codegen: TritonCodegen) -> None:
    x = torch.tensor([[-0.0, 0.0, -0.0], [0.0, -0.0, 1.0]])
    for along in (torch.cummax, torch.cummin):
        check(codegen, _inverse(along), x)


@pytest.mark.parametrize("shape", [(6, 2500), (2500, 6), (3, 40, 70), (9000,)], ids=str)
def test_rows_of_several_blocks(codegen: TritonCodegen, shape: tuple[int, ...]) -> None:
    x = torch.randint(-5, 5, shape).float()
    x[..., 1] = float("inf")
    for dim in range(x.dim()):
        assert check(codegen, _along(torch.cumsum, dim), x).extern_count == 0


def test_inputs_that_are_not_aligned(codegen: TritonCodegen) -> None:
    x = torch.randn(61)[1:].view(10, 6)
    assert check(codegen, lambda x: x.cumsum(1), x).extern_count == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.double().logcumsumexp(1),
        lambda x: torch.complex(x, x).cumsum(1),
    ],
    ids=["logarithms of doubles", "complex"],
)
def test_others_are_the_librarys(codegen: TritonCodegen, function: Function) -> None:
    assert check(codegen, function, torch.randn(8, 6)).extern_count >= 1


def test_logarithms_of_sums(codegen: TritonCodegen) -> None:
    x = torch.randn(6, 19)
    x[1, 3], x[2, 0], x[3], x[4, 5] = torch.inf, -torch.inf, -torch.inf, torch.nan
    for function in (lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(0)):
        assert check(codegen, function, x).extern_count == 0


@pytest.mark.parametrize("size", [(8, 0), (0, 8), (0,), (1,), ()], ids=str)
def test_few_or_no_elements(codegen: TritonCodegen, size: tuple[int, ...]) -> None:
    for along in (torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax):
        check(codegen, _along(along, -1), torch.randn(size))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_what_feeds_it_and_reads_it_is_one_kernel(codegen: TritonCodegen, dim: int) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) + y).cumsum(dim).relu() * y

    run = check(codegen, program, torch.randn(6, 5, 9), torch.randn(6, 5, 9))
    assert (run.kernel_count, run.extern_count) == (1, 0)


def test_a_scan_and_a_softmax(codegen: TritonCodegen) -> None:
    """As tokens are chosen among the likeliest whose shares add up to some number."""

    def program(x: torch.Tensor) -> torch.Tensor:
        shares = x.softmax(-1)
        return torch.where(shares.cumsum(-1) - shares > 0.5, -torch.inf, x)

    assert check(codegen, program, torch.randn(7, 50)).extern_count == 0
