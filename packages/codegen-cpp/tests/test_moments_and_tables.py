"""Moments of hard rows, values that a table keeps, groups of channels that lie last: beside float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen
from weft_loop_ir import Schedule

R = torch.randn


def scheduled(function: Callable[..., object], *inputs: torch.Tensor) -> Schedule:
    # Not with fakes: those of group norm are contiguous on torch 2.14, whatever the image's layout.
    graph = make_fx(function, tracing_mode="real")(*inputs)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph), CppCodegen.schedule_options)


def source_of(
    codegen: CppCodegen, function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> str:
    """The source of ``function`` compiled, after its result has been compared with float64's."""
    program = codegen.compile(scheduled(function, *inputs), {})
    (result,) = program(*inputs)
    eager = function(*inputs)
    exact = function(*(x.double() for x in inputs))
    assert result.dtype == eager.dtype and result.stride() == eager.stride()
    error = 2e-2 if eager.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(result.double(), exact, rtol=error, atol=error, equal_nan=True)
    return program.source


HARD_ROWS = {
    "far from zero": lambda n: R(3, n) + 1000,
    "an outlier first": lambda n: torch.cat([torch.full((3, 1), 1e4), R(3, n - 1)], 1),
    "an outlier last": lambda n: torch.cat([R(3, n - 1), torch.full((3, 1), 1e4)], 1),
    "constant": lambda n: torch.full((3, n), 0.1),
    "a trend": lambda n: torch.arange(3.0 * n).reshape(3, n),
    "not a number": lambda n: torch.cat([R(3, n - 1), torch.full((3, 1), torch.nan)], 1),
}


@pytest.mark.parametrize("length", [2, 15, 16, 67, 5000])
@pytest.mark.parametrize("dimension", [0, 1])
def test_variance_of_hard_rows(codegen: CppCodegen, length: int, dimension: int) -> None:
    x = torch.cat([rows(length) for rows in HARD_ROWS.values()])
    x = x if dimension else x.t().contiguous()
    exact = x.double().var(dimension)
    program = codegen.compile(scheduled(lambda x: x.var(dimension), x), {})
    (result,) = program(x)
    torch.testing.assert_close(result.double(), exact, rtol=5e-5, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "groups"), [(32, 4), (20, 2), (64, 1), (6, 3), (256, 2)])
@pytest.mark.parametrize("size", [5, 40])
def test_group_norm_of_channels_last(
    codegen: CppCodegen, dtype: torch.dtype, channels: int, groups: int, size: int
) -> None:
    x = (R(2, channels, size, size) * 3 + 7).to(dtype).to(memory_format=torch.channels_last)
    w, b = R(channels).to(dtype), R(channels).to(dtype)
    source_of(codegen, lambda x, w, b: F.silu(F.group_norm(x, groups, w, b)), x, w, b)


def test_channels_last_groups_are_summed_side_by_side() -> None:
    x = R(1, 32, 16, 16).to(memory_format=torch.channels_last)
    schedule = scheduled(lambda x: x.reshape(1, 4, 8, 256).sum((2, 3)), x)
    first, second = schedule.steps
    assert [int(v.size) for v in first.outer] == [4, 32]
    assert [int(v.size) for v in second.outer] == [4]
    unsplit = weft_loop_ir.schedule(
        weft_loop_ir.lower(make_fx(lambda x: x.reshape(1, 4, 8, 256).sum((2, 3)))(x))
    )
    assert len(unsplit.steps) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 16, 37])
def test_what_rows_share_is_in_a_table(
    codegen: CppCodegen, dtype: torch.dtype, channels: int
) -> None:
    x = R(2, channels, 9, 9).to(dtype).to(memory_format=torch.channels_last)
    m, v = R(channels).to(dtype), R(channels).to(dtype).abs()
    source = source_of(codegen, lambda x, m, v: F.relu(F.batch_norm(x, m, v)), x, m, v)
    assert "table0" in source


def test_tables_of_what_lies_apart_or_changes(codegen: CppCodegen) -> None:
    """A gathered row, a row of bools, and none for a buffer that the kernel writes."""
    x, y = R(50, 40), R(40, 3)
    source = source_of(codegen, lambda x, y: torch.where(y[:, 1].exp() > 1, x, -x), x, y)
    assert "ui8 table0[40]" in source
    source = source_of(codegen, lambda x, y: x * y[:, 1], x, y)
    assert "f32 table0[40]" in source
    source = source_of(codegen, lambda x, y: x * y.sum(1), x, y)
    assert "table0" not in source


def test_few_rows_have_no_table(codegen: CppCodegen) -> None:
    source = source_of(codegen, lambda x, y: x * y.exp(), R(4, 40), R(40))
    assert "table0" not in source


@pytest.mark.parametrize(
    ("size", "dims", "memory_format"),
    [
        ((100_000, 16), (0,), torch.contiguous_format),
        ((70_001, 3), (0,), torch.contiguous_format),
        ((8, 20, 90, 90), (0, 2, 3), torch.channels_last),
        ((8, 20, 90, 90), (0, 2, 3), torch.contiguous_format),
        ((300_007,), (0,), torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sums_lose_no_digits(
    codegen: CppCodegen,
    size: tuple[int, ...],
    dims: tuple[int, ...],
    memory_format: torch.memory_format,
    dtype: torch.dtype,
) -> None:
    x = torch.rand(size, dtype=dtype).contiguous(memory_format=memory_format)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1.5).sum(dims)

    (result,) = codegen.compile(scheduled(program, x), {})(x)
    torch.testing.assert_close(result.double(), (x.double() * 1.5).sum(dims), rtol=2.5e-7, atol=0)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, -0.0, 3e38])
def test_long_sums_of_special_values(codegen: CppCodegen, value: float) -> None:
    x = torch.zeros(5000, 16)
    x[7] = value
    x[4000:4002, 3] = value
    if value == 0:
        x[:] = value
    (result,) = codegen.compile(scheduled(lambda x: x.sum(0), x), {})(x)
    torch.testing.assert_close(result, x.sum(0), equal_nan=True)
    assert torch.equal(result.signbit(), x.sum(0).signbit())
