"""``associative_scan``: blocks that are scanned at once, or a loop along the rows; beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import TOLERANCE, compiled
from weft_codegen_triton import TritonCodegen, TritonProgram

T = torch.Tensor
SCANNED = "tl.associative_scan"


def scan(combine: Callable[..., Any], *rows: T) -> tuple[T, ...]:
    results: tuple[T, ...] = torch.ops.higher_order.associative_scan(combine, rows, ())
    return results


def recurrence(a: T, b: T, c: T, d: T) -> tuple[T, T]:
    return a * c, b * c + d


def segmented(x: T, f: T, y: T, g: T) -> tuple[T, T]:
    return torch.where(g, y, x + y), f | g


def pairs(*size: int) -> tuple[T, T]:
    return torch.rand(size, dtype=torch.float64), torch.randn(size, dtype=torch.float64)


def check(codegen: TritonCodegen, function: Callable[..., Any], *inputs: T) -> TritonProgram:
    """Compare values with eager's in float64; as to strides, torch's operator says others than it gives."""
    program = compiled(codegen, function, *inputs)
    assert_equals(program, function, inputs)
    return program


def assert_equals(program: TritonProgram, function: Callable[..., Any], inputs: Any) -> None:
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    expected = exact if isinstance(exact, tuple | list) else (exact,)
    for got, want in zip(program(*inputs), expected, strict=True):
        tolerance = TOLERANCE.get(got.dtype, 0.0)
        torch.testing.assert_close(
            got.to(want.dtype), want, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def along_last(combine: Callable[..., Any]) -> Callable[..., Any]:
    def function(*xs: T) -> tuple[T, ...]:
        rows = scan(combine, *(x.movedim(-1, 0) for x in xs))
        return tuple(row.movedim(0, -1) for row in rows)

    return function


@pytest.mark.usefixtures("short_blocks")
def test_zeros_keep_their_sign_from_block_to_block(codegen: TritonCodegen) -> None:
    function = along_last(torch.mul)
    x = torch.ones(2, 40)
    x[0, 3], x[1, 5] = -0.0, 0.0
    (result,) = compiled(codegen, function, x)(x)
    torch.testing.assert_close(1 / result, 1 / x.cumprod(1))


@pytest.mark.parametrize("length", [2, 5, 17, 33, 50])
@pytest.mark.usefixtures("short_blocks")
def test_rows_of_several_blocks(codegen: TritonCodegen, length: int) -> None:
    function = along_last(recurrence)
    program = check(codegen, function, *pairs(3, length))
    assert SCANNED in program.source
    assert program.extern_count == 0


@pytest.mark.parametrize("size", [(9, 3), (20, 2, 5), (7,), (40, 1), (3, 40), (37, 20)], ids=str)
@pytest.mark.usefixtures("short_blocks")
def test_columns_side_by_side(codegen: TritonCodegen, size: tuple[int, ...]) -> None:
    program = check(codegen, lambda a, b: scan(recurrence, a, b), *pairs(*size))
    assert SCANNED in program.source


@pytest.mark.parametrize(
    ("combine", "dtype"),
    [
        (lambda x, y: (x + y,), torch.float32),
        (lambda x, y: (x * y + 0.0,), torch.float32),
        (lambda x, y: (torch.maximum(x, y),), torch.float16),
        (lambda x, y: (torch.logaddexp(x, y),), torch.float32),
        (lambda x, y: (x + y,), torch.bfloat16),
        (lambda x, y: (x + y,), torch.int64),
        (lambda x, y: (torch.minimum(x, y),), torch.int8),
        (lambda x, y: (x ^ y,), torch.bool),
        (lambda x, y: (y,), torch.float32),
    ],
)
@pytest.mark.usefixtures("short_blocks")
def test_combinations(
    codegen: TritonCodegen, combine: Callable[..., Any], dtype: torch.dtype
) -> None:
    x = (torch.randn(2, 37) * 2).to(dtype)
    assert SCANNED in check(codegen, along_last(combine), x).source


@pytest.mark.usefixtures("short_blocks")
def test_values_of_several_dtypes(codegen: TritonCodegen) -> None:
    x, starts = torch.randn(2, 40), torch.rand(2, 40) < 0.2
    program = check(codegen, along_last(segmented), x, starts)
    assert SCANNED in program.source
    x[0, 3], x[1, 5] = float("nan"), float("inf")
    starts[:, 20] = True
    check(codegen, along_last(segmented), x, starts)


@pytest.mark.usefixtures("short_blocks")
def test_one_result_of_two_and_a_reversed_row(codegen: TritonCodegen) -> None:
    def function(a: T, b: T) -> T:
        rows = scan(recurrence, *(x.movedim(-1, 0).flip(0) for x in (a, b)))
        return rows[1].flip(0).movedim(0, -1).relu()

    assert SCANNED in check(codegen, function, *pairs(3, 30)).source


@pytest.mark.usefixtures("short_blocks")
def test_what_is_read_besides_rows_makes_a_loop(codegen: TritonCodegen) -> None:
    def function(x: T, w: T) -> Any:
        operator = torch.ops.higher_order.associative_scan
        return operator(lambda a, b, w: (a + b + w,), (x,), (w,))

    program = check(codegen, function, torch.randn(11, 4), torch.randn(4))
    assert SCANNED not in program.source


@pytest.mark.usefixtures("short_blocks")
def test_any_length_with_one_program(codegen: TritonCodegen) -> None:
    function = along_last(recurrence)
    program = compiled(codegen, function, *pairs(3, 20), dynamic=True)
    assert SCANNED in program.source
    for size in ((3, 20), (2, 5), (5, 61)):
        assert_equals(program, function, pairs(*size))


@pytest.mark.parametrize("length", [5, 8, 9, 16, 17, 33, 50])
@pytest.mark.usefixtures("short_blocks")
def test_columns_of_several_tiles(codegen: TritonCodegen, length: int) -> None:
    """Threads combine neighbours before they exchange what follows."""
    program = check(codegen, lambda a, b: scan(recurrence, a, b), *pairs(length, 20))
    assert ("_combine_before" in program.source) == (length > 4)
    x, starts = torch.randn(length, 20), torch.rand(length, 20) < 0.2
    x[length // 2, 3] = float("nan")
    check(codegen, lambda x, f: scan(segmented, x, f), x, starts)


@pytest.mark.usefixtures("short_blocks")
def test_columns_of_any_length_with_one_program(codegen: TritonCodegen) -> None:
    def function(a: T, b: T) -> tuple[T, ...]:
        return scan(recurrence, a, b)

    program = compiled(codegen, function, *pairs(20, 30), dynamic=True)
    assert "_combine_before" in program.source
    for size in ((20, 30), (5, 2), (61, 5)):
        assert_equals(program, function, pairs(*size))


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "any sizes"])
@pytest.mark.usefixtures("short_blocks")
def test_columns_that_are_loaded_ahead(codegen: TritonCodegen, dynamic: bool) -> None:
    """The next block is loaded while one is scanned, whose elements are read once more after it."""

    def function(x: T, y: T, columns: T) -> T:
        (sums,) = scan(torch.add, x * y * columns)
        return sums * 2 + x + columns

    def inputs(length: int) -> list[T]:
        return [torch.randn(size) for size in ((length, 20), (length, 20), (20,))]

    program = compiled(codegen, function, *inputs(40), dynamic=dynamic)
    assert "ahead0_0 = " in program.source
    for length in (40, 33, 17, 5) if dynamic else (40,):
        xs = inputs(length)
        xs[0][-2, 3], xs[0][2, 4] = float("nan"), float("inf")
        assert_equals(program, function, xs)
