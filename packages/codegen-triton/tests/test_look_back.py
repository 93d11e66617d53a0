"""Scans of few long rows in tiles that wait for the totals of those before them; beside eager.

The interpreter runs programs one after another: what is waited for is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from compiled_beside_eager import check, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.kernel import look_back

T = torch.Tensor
WAITS = "weft.wait_for_all"
LEAST = 60


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 elements, in groups of 4."""
    for name, value in {"min_row": lambda gpu: LEAST, "TILE": 16, "GROUP": 4}.items():
        monkeypatch.setattr(look_back, name, value)
    options = replace(TritonCodegen().schedule_options, whole_scan_elements=LEAST)
    monkeypatch.setattr(TritonCodegen, "schedule_options", options)


def scan(combine: Callable[..., Any], *rows: T) -> tuple[T, ...]:
    results: tuple[T, ...] = torch.ops.higher_order.associative_scan(combine, rows, ())
    return results


@pytest.mark.parametrize("length", [60, 64, 65, 128, 137, 300])
def test_one_row(codegen: TritonCodegen, length: int) -> None:
    """Of whole tiles and not, in one group and several."""
    x = torch.randn(length)
    source = check(codegen, lambda x: x.cumsum(0), x).source
    assert WAITS in source and "zeros(" in source


DTYPES = [
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = (torch.randn(2, 150) * 3).to(dtype)
    assert WAITS in check(codegen, lambda x: x.cumsum(1), x).source


def test_numbers_of_64_bits_keep_all(codegen: TritonCodegen) -> None:
    x = torch.randint(-(1 << 62), 1 << 62, (200,))
    check(codegen, lambda x: (x.cumsum(0), *x.cummax(0)), x)
    x = torch.rand(200, dtype=torch.float64) * 1e-300
    check(codegen, lambda x: x.cumsum(0), x)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0], ids=str)
def test_special_values(codegen: TritonCodegen, special: float) -> None:
    x = torch.randn(3, 80)
    x[0, 0] = x[1, 30] = x[2, -1] = special
    check(codegen, lambda x: (x.cumsum(1), x.cummin(1).values), x)
    (ones,) = compiled(codegen, lambda x: x.cumprod(0), torch.ones(150))(
        torch.full((150,), special)
    )
    torch.testing.assert_close(1 / ones, 1 / torch.full((150,), special).cumprod(0), equal_nan=True)


def test_the_order_of_operands(codegen: TritonCodegen) -> None:
    """What combines elements need not commute, and may have several values of several dtypes."""

    def segmented(x: T, f: T, y: T, g: T) -> tuple[T, T]:
        return torch.where(g, y, x + y), f | g

    def recurrence(a: T, b: T, c: T, d: T) -> tuple[T, T]:
        return a * c, b * c + d

    x, starts = torch.randn(150, dtype=torch.float64), torch.rand(150) < 0.1
    program = compiled(codegen, lambda x, f: scan(segmented, x, f), x, starts)
    assert WAITS in program.source
    for got, want in zip(program(x, starts), scan(segmented, x, starts), strict=True):
        torch.testing.assert_close(got, want)
    a, b = torch.rand(2, 150, dtype=torch.float64)
    program = compiled(codegen, lambda a, b: scan(recurrence, a, b), a, b)
    for got, want in zip(program(a, b), scan(recurrence, a, b), strict=True):
        torch.testing.assert_close(got, want)
    last = compiled(codegen, lambda x: scan(lambda a, b: b * 1, x)[0], x)(x)
    torch.testing.assert_close(last[0], x)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.integers(1, 4), max_size=2),
    length=st.integers(LEAST, 150),
    layout=st.sampled_from(["as it is", "expanded", "every second", "turned round", "transposed"]),
)
def test_any_sizes_and_layouts(
    codegen: TritonCodegen, rows: list[int], length: int, layout: str
) -> None:
    x = torch.randn(*rows, length)
    if layout == "expanded":
        x = torch.randn(*rows, 1).expand(*rows, length)
    elif layout == "every second":
        x = torch.randn(*rows, 2 * length)[..., ::2]
    elif layout == "transposed":
        x = torch.randn(length, *rows).movedim(0, -1)

    def function(x: T) -> T:
        return (x.flip(-1).sin() if layout == "turned round" else x).cumsum(-1) * 2 + x

    assert WAITS in check(codegen, function, x).source


def test_results_are_the_same_in_each_run(codegen: TritonCodegen) -> None:
    x = torch.randn(300)
    program = compiled(codegen, lambda x: x.cumsum(0), x)
    (first,) = program(x)
    for _ in range(3):
        (again,) = program(x)
        assert torch.equal(first, again)


def test_dear_combinations_are_split(codegen: TritonCodegen) -> None:
    x = torch.randn(5000)
    source = check(codegen, lambda x: x.logcumsumexp(0), x).source
    assert WAITS not in source and "tl.associative_scan" in source
