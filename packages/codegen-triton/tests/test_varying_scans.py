"""Scans of any size: one program for all, with blocks and pieces by the sizes of the first call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, compiled
from weft_codegen_triton import TritonCodegen, TritonOptions

T = torch.Tensor

SIZES = [(1, 1), (3, 61), (61, 3), (1, 128)]


def inclusive(combine: Callable[..., Any], *rows: T) -> tuple[T, ...]:
    results: tuple[T, ...] = torch.ops.higher_order.associative_scan(combine, rows, ())
    return results


SCANS: dict[str, Callable[[T], Any]] = {
    "sum of rows": lambda x: x.cumsum(1),
    "sum of columns": lambda x: (x.t().sin() * 2).cumsum(0) + x.t(),
    "product": lambda x: (x.clamp(-1, 1) / 10 + 1).cumprod(1),
    "logarithm of a sum": lambda x: x.float().logcumsumexp(1),
    "maximum of rows": lambda x: x.cummax(1),
    "minimum of columns": lambda x: x.t().contiguous().cummin(0),
    "sum of what is not contiguous": lambda x: x[:, ::2].cumsum(1),
    "sum of three dimensions": lambda x: torch.stack([x, x + 1], 1).cumsum(1),
}


@pytest.fixture
def short(short_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so short that rows have several, and rows of 64 elements pieces."""
    splitting = sys.modules["weft_loop_ir.schedule.split_scans"]
    monkeypatch.setattr(splitting, "MIN_PIECE", 32)
    monkeypatch.setattr(splitting, "ALIGNMENT", 4)


@pytest.mark.parametrize("first", [(4, 9), (2, 130)], ids=str)
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.usefixtures("short")
def test_one_program_for_all_sizes(
    name: str, first: tuple[int, int], codegen: TritonCodegen
) -> None:
    function = SCANS[name]
    program = compiled(codegen, function, torch.randn(first), dynamic=True)
    assert program.extern_count == 0
    for size in [first, *SIZES]:
        x = torch.randn(size)
        if x.numel() > 9:
            x.view(-1)[7] = torch.inf
        assert_equals_eager(program(x), function, (x,))
    for size in ((0, 5), (5, 0)):
        x = torch.randn(size)
        wanted = function(x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        assert [r.shape for r in program(x)] == [w.shape for w in wanted]


@pytest.mark.parametrize("length", [6, 200])
@pytest.mark.usefixtures("short")
def test_any_combination(length: int, codegen: TritonCodegen) -> None:
    def function(a: T, b: T) -> T:
        rows = inclusive(
            lambda a, b, c, d: (a * c, b * c + d),
            a.double().movedim(1, 0),
            b.double().movedim(1, 0),
        )
        return rows[1].movedim(0, 1).relu()

    def pair(*size: int) -> tuple[T, T]:
        return torch.rand(size), torch.randn(size)

    program = compiled(codegen, function, *pair(3, length), dynamic=True)
    assert program.extern_count == 0
    for size in ((3, length), (2, 5), (3, 67), (2, 401)):
        inputs = pair(*size)
        (result,) = program(*inputs)
        torch.testing.assert_close(result, function(*inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.usefixtures("short")
def test_dtypes(dtype: torch.dtype, codegen: TritonCodegen) -> None:
    def function(x: T) -> Any:
        return x.cumsum(1), x.cummax(1).values

    program = compiled(codegen, function, torch.ones(3, 70, dtype=dtype), dynamic=True)
    assert program.extern_count == 0
    for size in ((3, 70), (2, 7), (3, 111)):
        x = (torch.randn(size) + 1).to(dtype)
        assert_equals_eager(program(x), function, (x,))


@pytest.mark.parametrize("first", [(2, 20), (2, 130)], ids=str)
@pytest.mark.usefixtures("short")
def test_indices_of_64_bits(first: tuple[int, int], cache: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache, narrow_below=1))
    for name in ("sum of rows", "sum of columns", "maximum of rows"):
        program = compiled(codegen, SCANS[name], torch.randn(first), dynamic=True)
        for size in (first, (3, 77)):
            x = torch.randn(size)
            assert_equals_eager(program(x), SCANS[name], (x,))


@pytest.mark.usefixtures("short")
def test_a_long_row_is_read_twice(codegen: TritonCodegen) -> None:
    """By what totals pieces and by what follows on them, the last of which may be shorter."""
    kernels = {}
    for length in (20, 300):
        program = compiled(codegen, lambda x: x.cummax(1), torch.randn(2, length), dynamic=True)
        kernels[length] = program.kernel_count
    assert kernels[20] == 1 < kernels[300]


def test_one_row_is_the_librarys(codegen: TritonCodegen) -> None:
    def function(x: T) -> T:
        return x.cumsum(0)

    program = compiled(codegen, function, torch.randn(40), dynamic=True)
    assert program.extern_count == 1
    for length in (40, 0, 1, 333):
        x = torch.randn(length)
        assert_equals_eager(program(x), function, (x,))
