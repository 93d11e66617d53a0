"""Cumulative sums and products: kernels where there are rows enough, the library's else; beside eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled_beside_eager import check
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.kernel import scans

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "FEWEST_ROWS", 4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sums_and_products(codegen: TritonCodegen, dtype: torch.dtype, dim: int) -> None:
    x = (torch.randn(5, 3, 7) + 1).to(dtype)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(dim), (x * 1).cumprod(dim), x.cumsum(dim) + 1

    run = check(codegen, program, x)
    assert (run.kernel_count >= 3, run.extern_count) == (True, 0)


@pytest.mark.parametrize("shape", [(6, 2500), (2500, 6), (3, 40, 70)], ids=str)
def test_rows_of_several_blocks(codegen: TritonCodegen, shape: tuple[int, ...]) -> None:
    x = torch.randint(-5, 5, shape).float()
    x[..., 1] = float("inf")
    along = [lambda x: x.cumsum(0), lambda x: x.cumsum(1), lambda x: x.cumsum(-1)]
    for function in along:
        assert check(codegen, function, x).extern_count == 0


def test_inputs_that_are_not_aligned(codegen: TritonCodegen) -> None:
    x = torch.randn(61)[1:].view(10, 6)
    assert check(codegen, lambda x: x.cumsum(1), x).extern_count == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().cumsum(0),
        lambda x: x[1:].cumsum(1),
        lambda x: x[:2].contiguous().cumsum(1),
        lambda x: x.cumsum(0, dtype=torch.float64),
        lambda x: x.double().logcumsumexp(1),
        lambda x: x.cummax(1)[0],
        lambda x: x.sum().cumsum(0),
    ],
    ids=["strides", "part", "few", "dtype", "logarithms of doubles", "cummax", "no dimension"],
)
def test_others_are_the_librarys(codegen: TritonCodegen, function: Function) -> None:
    assert check(codegen, function, torch.randn(8, 6)).extern_count == 1


def test_logarithms_of_sums(codegen: TritonCodegen) -> None:
    x = torch.randn(6, 19)
    x[1, 3], x[2, 0], x[3], x[4, 5] = torch.inf, -torch.inf, -torch.inf, torch.nan
    for function in (lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(0)):
        assert check(codegen, function, x).extern_count == 0


def test_an_empty_row(codegen: TritonCodegen) -> None:
    check(codegen, lambda x: x.cumsum(1), torch.randn(8, 0))
