"""Numbers of 8 bits: every bit as eager has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppProgram

T = torch.Tensor
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
KINDS = pytest.mark.parametrize("kind", FLOAT8, ids=str)


def same_bits(function: Callable[..., Any], *inputs: T) -> CppProgram:
    """Run ``function`` compiled: bits as eager's, but NaN of float32, which has many forms."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    codegen = CppCodegen()
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    weft_loop_ir.verify(schedule)
    program = codegen.compile(schedule, {})
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    evaluated = weft_loop_ir.evaluate(schedule, inputs)
    for got, by_torch, want in zip(program(*inputs), evaluated, wanted, strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        for value in (got, by_torch):
            if want.dtype in FLOAT8:
                assert torch.equal(value.view(torch.uint8), want.view(torch.uint8))
            else:
                torch.testing.assert_close(value, want, rtol=0, atol=0, equal_nan=True)
    return program


def numbers() -> T:
    """Around every number of 8 bits and every tie between two; and any bits."""
    eight = torch.arange(256, dtype=torch.uint8)
    values = torch.cat([eight.view(kind).float() for kind in FLOAT8])
    values = values[values.isfinite()].sort().values
    edges = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 464.0, 480.0, 61440.0, 65536.0]
    )
    around = torch.cat([values, (values[1:] + values[:-1]) / 2, edges]).view(torch.int32)
    near = [around + step for step in (-1, 0, 1)]
    generator = torch.Generator().manual_seed(1)
    any_bits = torch.randint(-(2**31), 2**31, (20001,), generator=generator)
    return torch.cat([*near, any_bits.to(torch.int32)]).view(torch.float32)


@KINDS
def test_rounding(kind: torch.dtype) -> None:
    x = numbers()
    sources = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    same_bits(
        lambda *given: tuple(t.to(kind) for t in given), *(x.to(source) for source in sources)
    )
    same_bits(lambda x: x[::3].to(kind), x)
    integers = torch.arange(-600, 600)
    same_bits(lambda i, b: (i.to(kind), b.to(kind)), integers, integers > 3)


@KINDS
def test_every_number(kind: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(kind)
    wider = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, *FLOAT8)
    same_bits(lambda x: tuple(x.to(dtype) for dtype in wider), every)
    finite = every[every.float().abs() < 2**31]
    same_bits(lambda x: (x.to(torch.int32), x.to(torch.int64)), finite)
    same_bits(lambda x: (x.view(torch.uint8) ^ 128, x[3].float(), x[:0].float()), every)


@KINDS
def test_quantisation(kind: torch.dtype) -> None:
    """A scale for each row, and one for all; nothing is torch's call."""
    most = torch.finfo(kind).max

    def rows(x: T) -> tuple[T, T, T]:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
        rounded = (x / scale).clamp(-most, most).to(kind)
        return rounded, scale, rounded.float() * scale

    def whole(x: T) -> T:
        return (x * (most / x.abs().amax())).to(kind)

    for size in ((4, 16), (37, 131)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(2))
        assert same_bits(rows, x).extern_count == 0
        assert same_bits(whole, x).extern_count == 0


def test_matmuls() -> None:
    """``_scaled_mm`` is torch's, between kernels that quantise."""

    def function(x: T, w: T, one: T) -> T:
        a, b = (t.to(torch.float8_e4m3fn) for t in (x, w))
        return torch._scaled_mm(a, b.t(), one * 2, one, out_dtype=torch.float32) + 1

    assert (
        same_bits(function, torch.randn(32, 32), torch.randn(16, 32), torch.ones(())).extern_count
        == 1
    )
