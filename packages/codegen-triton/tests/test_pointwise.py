"""Elementwise kernels: every operation on every kind of number, every layout of operands."""

from __future__ import annotations

import math

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, check, compiled
from kernel_cases import BINARY_NAMES, INTEGER_NAMES, LAYOUTS, SPECIAL, UNARY_NAMES, all_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_unary_on_special_values(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    check(codegen, all_of(UNARY_NAMES), torch.tensor(SPECIAL, dtype=dtype))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_binary_on_special_values(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.tensor([v for v in SPECIAL if v != 1e-40], dtype=dtype)  # torch's fmod by it varies
    check(codegen, all_of(BINARY_NAMES), x[:, None], x[None, :])


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_precision_is_computed_in_float32(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.randn(3, 50).to(dtype)
    check(codegen, lambda x: (x.exp(), F.gelu(x) * x + 1, x.float().sin(), x > 0), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = [limits.min, limits.max, 0, 1, 3, limits.max - 2]
    x = torch.tensor(values, dtype=dtype)
    check(codegen, all_of(INTEGER_NAMES), x[:, None], x[None, :])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integer_division_and_shifts(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.tensor([-7, -6, -1, 0, 1, 6, 7], dtype=dtype)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        truncated = torch.div(x, 3, rounding_mode="trunc")
        return x // 3, x % 3, truncated, torch.fmod(x, 3), x << 2, x >> 1, x**3, ~x, -x, x.sign()

    check(codegen, program, x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64], ids=str)
def test_integers_beyond_their_dtype(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 100], dtype=dtype)
    check(codegen, lambda x: (x + 200, x - 3, x * -1, ~x, x.bitwise_xor(-1), -x), x)


@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
def test_zeros_keep_their_sign(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return -x, (-x).signbit(), 1 / -x, torch.atan2(-x, x - 1), -x * 2

    x = torch.tensor([0.0, -0.0, 1.0, math.inf, -3.0], dtype=dtype)
    for got, want in zip(check(codegen, program, x)(x), program(x), strict=True):
        assert torch.equal(got.signbit(), want.signbit())


def test_truth_of_numbers_and_blocks(codegen: TritonCodegen) -> None:
    logical = all_of(["logical_and", "logical_or", "logical_xor"])
    check(codegen, logical, torch.tensor([0.0, 1.0, math.nan]), torch.tensor(2.0))


def test_bools(codegen: TritonCodegen) -> None:
    x = torch.tensor([True, False, True, False])
    y = torch.tensor([True, True, False, False])
    check(codegen, lambda x, y: (x & y, x | y, x ^ y, ~x, x * y, x + y, x < y, x.int() + y), x, y)


def test_conversions(codegen: TritonCodegen) -> None:
    dtypes = [F32, F64, F16, BF16, torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool]
    for source in dtypes:
        x = torch.tensor([0, 1, 2, 3, 100]).to(source)
        check(codegen, lambda x: tuple(x.to(d) for d in dtypes if d != x.dtype), x)


def test_where_and_clamp(codegen: TritonCodegen) -> None:
    x = torch.randn(7, 33)
    x[0, 0] = math.nan
    check(codegen, lambda x: (torch.where(x > 0, x, 2.0), x.clamp(-0.5, 0.5), x.clamp(min=0.1)), x)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(codegen: TritonCodegen, name: str) -> None:
    function, inputs = LAYOUTS[name]
    check(codegen, function, *inputs)


def test_a_transpose_is_tiled(codegen: TritonCodegen) -> None:
    program = check(codegen, lambda x: x.t().contiguous(), torch.randn(70, 40))
    assert "YBLOCK" in program.source


def test_dynamic_sizes_have_one_program(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.exp() + y).transpose(0, 1).contiguous() * x.shape[0]

    run = compiled(codegen, program, torch.randn(5, 7), torch.randn(7), dynamic=True)
    for height, width in ((5, 7), (2, 3), (40, 33)):
        inputs = torch.randn(height, width), torch.randn(width)
        assert_equals_eager(run(*inputs), program, inputs)


HALF = {
    "gelu": F.gelu,
    "silu": lambda x: F.silu(x),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "erf": torch.erf,
    "rounded between": lambda x: ((x * 1.5).sigmoid() + 1).to(x.dtype) * 0.5,
}
"""Functions with forms of their own where results have 16 bits."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_functions_of_halves(codegen: TritonCodegen, name: str, dtype: torch.dtype) -> None:
    small = torch.logspace(-7, 0, 50)
    special = torch.tensor(
        [s for s in SPECIAL if not math.isinf(s)]
    )  # eager gelu(inf) is NaN on CPUs
    x = torch.cat([torch.linspace(-12, 12, 97), small, -small, special])
    large = torch.tensor([1e3, -1e3, 6e4, -6e4])
    check(codegen, HALF[name], torch.cat([x, large]).to(dtype))


def test_an_error_function_that_saturates(codegen: TritonCodegen) -> None:
    x = torch.tensor([6.0, -6.0, 100.0, -100.0, -6e4]).half()
    (result,) = compiled(codegen, F.gelu, x)(x)
    assert torch.equal(result, F.gelu(x))  # nothing is left of what erf lacks to -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_interleaved_rotations_are_one_kernel(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    """As rotary embeddings turn pairs of neighbours; each pair is stacked, then flattened."""

    def function(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        return x * cos + turned * sin

    inputs = [torch.randn(2, 3, 5, 8, dtype=dtype), *(torch.randn(5, 8, dtype=dtype) for _ in "cs")]
    assert check(codegen, function, *inputs).kernel_count == 1


def test_what_several_read_through_views_is_joined_once(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([x, y, x], 1)
        return joined.t().exp(), joined.view(3, -1).sin(), joined.t() @ x

    check(codegen, function, torch.randn(6, 4), torch.randn(6, 5))


def chosen(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What 16 bits hold as it is, read again, and what they do not."""
    halves = torch.cat((-x, x.abs()), -1)
    return (
        torch.where(y > 0, -x, x) * y,
        torch.where(y > 0, x, 0.1) * y,
        x.clamp(min=0.1) * y,
        x.clamp(-0.5, 2) * y,
        torch.maximum(x, y).neg() * x,
        halves * halves,
        torch.where(y > 0, (x * y).abs(), 1.0) * x,
    )


def check_choices(codegen: TritonCodegen, dtype: torch.dtype, device: str) -> None:
    x, y = (torch.randn(40, 6).to(dtype) for _ in "xy")
    x[:2] = torch.tensor([float("inf"), float("nan"), 0.0, -0.0, 6e-8, 65504.0])
    x, y = x.to(device), y.to(device)
    program = compiled(codegen, chosen, x, y)
    for result, expected in zip(program(x, y), chosen(x, y), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert "round" in program.source


def test_choices_are_rounded_as_in_eager(codegen: TritonCodegen) -> None:
    """Not in bfloat16, for which Triton's interpreter cuts float32 off."""
    check_choices(codegen, torch.float16, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_choices_are_rounded_as_in_eager_on_a_gpu(dtype: torch.dtype) -> None:
    check_choices(TritonCodegen(), dtype, "cuda")
