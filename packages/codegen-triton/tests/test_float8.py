"""Numbers of 8 bits: every bit as eager has it on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import check, compiled
from weft_codegen_triton import TritonCodegen, TritonProgram

T = torch.Tensor
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
KINDS = pytest.mark.parametrize("kind", FLOAT8, ids=str)


def same_bits(codegen: TritonCodegen, function: Callable[..., Any], *inputs: T) -> TritonProgram:
    """Run ``function`` compiled: bits as eager's, but NaN of float32, which has many forms."""
    program = compiled(codegen, function, *inputs)
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(program(*inputs), wanted, strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        if want.dtype in FLOAT8:
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        else:
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    return program


def numbers() -> T:
    """Bits of float32 around every number of 8 bits and every tie between two, and any others."""
    eight = torch.arange(256, dtype=torch.uint8)
    values = torch.cat([eight.view(kind).float() for kind in FLOAT8])
    values = values[values.isfinite()].sort().values
    ties = (values[1:] + values[:-1]) / 2
    edges = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 464.0, 480.0, 61440.0, 65536.0]
    )
    around = torch.cat([values, ties, edges])
    bits = around.view(torch.int32)
    near = torch.cat([bits + step for step in (-2, -1, 0, 1, 2)])
    any_bits = torch.randint(-(2**31), 2**31, (4000,), dtype=torch.int64).to(torch.int32)
    return torch.cat([near, any_bits]).view(torch.float32)


@KINDS
@pytest.mark.parametrize(
    "source", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_rounding(codegen: TritonCodegen, kind: torch.dtype, source: torch.dtype) -> None:
    same_bits(codegen, lambda x: x.to(kind), numbers().to(source))


@KINDS
@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_rounding_of_integers(
    codegen: TritonCodegen, kind: torch.dtype, source: torch.dtype
) -> None:
    integers = torch.cat([torch.arange(-500, 500), torch.randint(-(10**6), 10**6, (500,))])
    same_bits(codegen, lambda x: x.to(kind), integers.to(source))


@KINDS
def test_every_number(codegen: TritonCodegen, kind: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(kind)
    wider = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool)
    same_bits(codegen, lambda x: tuple(x.to(dtype) for dtype in wider), every)
    finite = every[every.float().abs() < 2**31]
    same_bits(codegen, lambda x: (x.to(torch.int32), x.to(torch.int64)), finite)


@KINDS
def test_each_kind_from_the_other(codegen: TritonCodegen, kind: torch.dtype) -> None:
    (other,) = (k for k in FLOAT8 if k is not kind)
    same_bits(codegen, lambda x: x.to(other), torch.arange(256, dtype=torch.uint8).view(kind))


@KINDS
def test_bits(codegen: TritonCodegen, kind: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    same_bits(codegen, lambda x: (x + 1).view(kind), every)
    same_bits(codegen, lambda x: x.view(torch.uint8) ^ 128, every.view(kind))


@KINDS
def test_layouts(codegen: TritonCodegen, kind: torch.dtype) -> None:
    x = torch.randn(7, 9)

    def function(x: T) -> tuple[T, ...]:
        y = x.to(kind)
        return (
            y.t().contiguous(),
            y[::2, 1:],
            y.expand(2, 7, 9).clone(),
            y[:0].float(),
            y[1, 2].float(),
        )

    same_bits(codegen, function, x)
    same_bits(codegen, lambda x: (x.float() * 2).to(kind), x.to(kind).t())


@KINDS
def test_a_choice_by_a_mask(codegen: TritonCodegen, kind: torch.dtype) -> None:
    def function(x: T, y: T) -> T:
        return torch.nn.functional.pad(torch.where(x > y, x, y), (2, 1), value=3.3).to(kind)

    same_bits(codegen, function, torch.randn(5, 6), torch.randn(5, 6))


@KINDS
def test_a_number_that_is_rounded_in_between(codegen: TritonCodegen, kind: torch.dtype) -> None:
    """Quantised and widened in one kernel: the rounding is kept."""
    program = same_bits(codegen, lambda x: x.to(kind).float() * 3, numbers())
    assert program.kernel_count == 1


@KINDS
@pytest.mark.parametrize("size", [(4, 16), (37, 130)])
def test_quantisation_of_rows(
    codegen: TritonCodegen, kind: torch.dtype, size: tuple[int, int]
) -> None:
    """The largest magnitude, a scale and the rounded row, in one kernel that reads the row once."""

    def function(x: T) -> tuple[T, T]:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(kind).max
        return (x / scale).clamp(-torch.finfo(kind).max, torch.finfo(kind).max).to(kind), scale

    program = same_bits(codegen, function, torch.randn(size))
    assert (program.kernel_count, program.extern_count) == (1, 0)


@KINDS
def test_a_divisor_of_all_and_bounds(codegen: TritonCodegen, kind: torch.dtype) -> None:
    """Their forms are cheaper; bounds that are too far, or of one side, tell nothing."""
    top = torch.finfo(kind).max
    x, scale = numbers(), torch.tensor(0.3)
    source = same_bits(codegen, lambda x, s: (x / s).clamp(-top, top).to(kind), x, scale).source
    assert "divide_by_row_exactly(" in source and "_within(" in source
    for low, high in ((-2 * top, top), (None, 1), (-top, 2 * top)):
        bounded = functools.partial(torch.clamp, min=low, max=high)
        source = same_bits(codegen, lambda x, s: bounded(x / s).to(kind), x, scale).source  # noqa: B023
        assert "_within(" not in source


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("most", [1.0, 2.0], ids=["within", "beyond"])
def test_quotients_on_a_gpu(kind: torch.dtype, most: float) -> None:
    """By instructions: every divisor's quotients are rounded as eager's."""
    top = most * torch.finfo(kind).max
    inputs = numbers().cuda(), torch.rand(40, device="cuda").exp2()
    scales = torch.tensor([0.0, torch.inf, torch.nan, 1e-40, 2.0**-126, 3e38], device="cuda")
    program = compiled(
        TritonCodegen(), lambda x, s: ((x / s).clamp(-top, top).to(kind),), inputs[0], inputs[1][0]
    )
    for scale in (*inputs[1] * 2.0 ** torch.arange(-80, 80, 4, device="cuda"), *scales):
        got, wanted = program(inputs[0], scale)[0], (inputs[0] / scale).clamp(-top, top).to(kind)
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)
        is_number = ~wanted.float().isnan()
        assert torch.equal(got.view(torch.uint8)[is_number], wanted.view(torch.uint8)[is_number])


@KINDS
def test_quantisation_of_a_matrix(codegen: TritonCodegen, kind: torch.dtype) -> None:
    def function(x: T) -> tuple[T, T]:
        scale = torch.finfo(kind).max / x.abs().amax().clamp(min=1e-12)
        return (x * scale).to(kind), scale.reciprocal()

    program = same_bits(codegen, function, torch.randn(300, 200))
    assert program.kernel_count <= 3  # a large maximum takes two
    assert program.extern_count == 0


def test_matmuls(codegen: TritonCodegen) -> None:
    """``_scaled_mm`` is the library's, between kernels that quantise."""

    def function(x: T, w: T, one: T) -> T:
        a, b = (t.to(torch.float8_e4m3fn) for t in (x, w))
        return torch._scaled_mm(a, b.t(), one * 2, one, out_dtype=torch.float32) + 1

    program = check(codegen, function, torch.randn(32, 32), torch.randn(16, 32), torch.ones(()))
    assert program.extern_count == 1


def test_rows_and_columns_in_tiles(codegen: TritonCodegen) -> None:
    """What is rounded for a matmul and for that of its gradient: one kernel stores both."""
    x = torch.randn(1536, 1600).bfloat16()

    def function(x: T) -> tuple[T, T]:
        rounded = (x.float() / 3).clamp(-448, 448).to(torch.float8_e4m3fn)
        return rounded, rounded.t().contiguous()

    assert same_bits(codegen, function, x).kernel_count == 1
