"""Reductions over rows and columns, in registers and in loops; and stages that follow one another."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, check, compiled, schedule_of
from kernel_cases import ROWS, statistics
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen

F32, F64 = torch.float32, torch.float64
Results = tuple[torch.Tensor, ...]
SHAPES = ((5, 33), (1, 7), (3, 1), (0, 5))


@pytest.fixture(params=["codegen", "looping", "stepping"])
def either(request: pytest.FixtureRequest) -> TritonCodegen:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_of_floats(either: TritonCodegen, dtype: torch.dtype, dim: int) -> None:
    for shape in SHAPES:
        if shape[dim]:
            check(either, statistics(dim), torch.randn(shape, dtype=dtype))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_of_integers(either: TritonCodegen, dtype: torch.dtype, dim: int) -> None:
    x = torch.randint(0, 5, (6, 37)).to(dtype)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = x.sum(dim), x.amax(dim), x.amin(dim), x.argmax(dim), x.argmin(dim)
        return *results, (x > 3).any(dim), x.bool().all(dim)

    check(either, program, x)


def test_over_nothing(either: TritonCodegen) -> None:
    check(either, lambda x: (x.sum(1), x.prod(1), (x > 0).any(1), (x > 0).all(1)), torch.ones(4, 0))


@pytest.mark.parametrize("dim", [0, 1])
def test_nan_and_infinity_propagate(either: TritonCodegen, dim: int) -> None:
    x = torch.randn(20, 20)
    x[3, 5] = x[3, 15] = x[7, 19] = x[19, 0] = math.nan
    x[11, 3] = x[12, 12] = math.inf
    x[11, 9] = -math.inf
    x[5] = -math.inf

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(dim),
            x.amax(dim),
            x.amin(dim),
            x.argmax(dim),
            x.argmin(dim),
            x.isnan().any(dim),
        )

    check(either, program, x)


def test_argmax_takes_the_first_of_equals(either: TritonCodegen) -> None:
    x = torch.randint(0, 3, (9, 60)).float()
    check(either, lambda x: (x.argmax(1), x.argmin(1), x.argmax(0), x.argmin(0)), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_accumulates_in_float32(either: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.randn(4, 300).to(dtype)
    check(either, lambda x: (x.sum(1), x.mean(1), x.amax(1), x.softmax(1)), x)


def test_over_everything(either: TritonCodegen) -> None:
    check(either, lambda x: (x.sum(), x.amax(), x.argmax(), (x > 3).any()), torch.randn(7, 9, 5))


def test_a_long_sum_is_split(codegen: TritonCodegen) -> None:
    program = check(codegen, lambda x: x.sum(), torch.randn(1 << 17, dtype=F64))
    assert program.kernel_count == 2


def test_few_long_rows_and_columns_are_split(codegen: TritonCodegen) -> None:
    x = torch.rand(1 << 12, 20, dtype=F64)
    assert check(codegen, lambda x: x.sum(0), x).kernel_count == 2
    assert check(codegen, lambda x: x.amax(0) + 1, x).kernel_count == 2
    y = torch.rand(3, 1 << 16, dtype=F64)
    assert check(codegen, lambda x: x.sum(1), y).kernel_count == 2


def test_moments_of_many_rows_are_split(codegen: TritonCodegen) -> None:
    x = (
        torch.randn(16, 20, 20, 16, dtype=F64).permute(0, 3, 1, 2) * 3 + 100
    )  # channels side by side

    def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x, (0, 2, 3), keepdim=True)
        return variance, mean, (x - mean).abs().amax((0, 2, 3))

    buffers = schedule_of(moments, (x,), codegen).buffers
    assert any(name.endswith("_partial") for name in buffers)
    check(codegen, moments, x)
    x[1, 2, 3, 4] = torch.nan
    check(codegen, moments, x)


def test_over_several_dimensions(either: TritonCodegen) -> None:
    x = torch.randn(3, 4, 5, 6)
    check(either, lambda x: (x.sum((1, 3)), x.mean((0, 2, 3)), x.amax((0, 1))), x)


@pytest.mark.parametrize("name", ROWS)
def test_rows(either: TritonCodegen, name: str) -> None:
    function, inputs = ROWS[name]
    check(either, function, *inputs)


@pytest.mark.skipif(
    torch.__version__.startswith("2.14"), reason="its fakes of group_norm are contiguous"
)
def test_rows_that_lie_channels_last(either: TritonCodegen) -> None:
    x = torch.randn(2, 6, 5, 5).to(memory_format=torch.channels_last)
    program = check(either, lambda x: F.group_norm(x, 2), x)
    assert "r_r0 = rindex % 3" in program.source  # channels side by side
    check(either, lambda x: x.permute(0, 2, 3, 1).reshape(2, 25, 6).flatten(1).argmax(1), x)


def check_different_orders(codegen: TritonCodegen, *tokens: int) -> None:
    """Sums over tokens of channels that lie side by side, times channels of which each token's do not."""

    def program(x: torch.Tensor, image: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        centred = image.mT - m
        return (x * centred).sum((0, 1)), (x.float() * centred.square()).sum(-1), x.sum((0, 1))

    x = torch.randn(*tokens, 40)
    check(codegen, program, x.half(), torch.randn(tokens[0], 40, tokens[1]), x.mean(-1, True))


def test_operands_that_lie_in_different_orders(either: TritonCodegen) -> None:
    check_different_orders(either, 2, 48)


def test_many_operands_that_lie_in_different_orders(codegen: TritonCodegen) -> None:
    """As many as loops are for; with shorter registers each step of many takes the interpreter long."""
    check_different_orders(codegen, 4, 300)


def test_sums_of_columns_have_the_next_tiles_on_their_way(codegen: TritonCodegen) -> None:
    """As many as fit in memory of those that more than a few operands have."""

    def program(*x: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.mul, x).sum(0)

    for count, is_ahead in ((1, True), (2, True), (8, False)):
        inputs = [torch.rand(1024, 64) + 0.5 for _ in range(count)]
        source = compiled(codegen, program, *inputs).source
        assert ("num_stages=" in source) == is_ahead


@pytest.mark.parametrize("name", ["softmax", "layer norm", "root mean square"])
def test_rows_are_read_once(codegen: TritonCodegen, name: str) -> None:
    function, inputs = ROWS[name]
    program = check(codegen, function, *inputs)
    assert program.kernel_count == 1
    assert program.source.count("tl.load(in0_ptr") == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_load_all_before_they_are_added_up(codegen: TritonCodegen, rows: int) -> None:
    """What a stage stores and a later one reads stays in registers, also where rows have no index."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Results:
        total = x + y
        wide = total.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return total, (wide * scale).to(x.dtype) * w + b

    inputs = torch.randn(rows, 72), torch.randn(rows, 72), torch.randn(72), torch.randn(72)
    source = check(codegen, program, *(t.bfloat16() for t in inputs)).source
    before, after = source.split("tl.sum(")
    assert before.count("tl.load(") == 4 and "tl.load(" not in after
    assert "debug_barrier" not in source


def test_dynamic_rows(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(1), x.sum(0), x.argmax(1), x.mean()

    run = compiled(codegen, program, torch.randn(5, 7), dynamic=True)
    for shape in ((5, 7), (3, 50), (40, 2)):
        x = torch.randn(shape)
        assert_equals_eager(run(x), program, (x,))


KINDS_AND_LENGTHS = [
    ("codegen", 33), ("codegen", 5000), ("codegen", 20_000), ("looping", 700), ("stepping", 33),
]  # fmt: skip
"""Rows in registers, of vectors, of steps, and with a part of a block at their end."""


@pytest.mark.parametrize(("kind", "length"), KINDS_AND_LENGTHS)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_equal_elements_have_no_deviation(
    request: pytest.FixtureRequest, dtype: torch.dtype, kind: str, length: int
) -> None:
    """Whatever rounding does to their mean: a norm of them would show its square beside ``eps``."""
    codegen = request.getfixturevalue(kind)
    x = torch.tensor([1e5, 0.1, -3e7])[:, None].to(dtype).expand(3, length).contiguous()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.var_mean(x, 1), F.layer_norm(x, (length,)))

    variance, mean, normalised = compiled(codegen, program, x)(x)
    assert not variance.any() and not normalised.any()
    assert torch.equal(mean, x[:, 0])


@pytest.mark.parametrize(("kind", "length"), KINDS_AND_LENGTHS)
@pytest.mark.parametrize("scale", [1e20, 3e35])
def test_norms_of_large_elements(
    request: pytest.FixtureRequest, kind: str, length: int, scale: float
) -> None:
    """Squares are infinite and sums may be, but means are not, and nothing is no number."""
    codegen = request.getfixturevalue(kind)
    x = (torch.rand(2, 2, length) + 0.5) * scale
    gradient = torch.randn(2, 2, length)

    def program(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
        layer = torch.ops.aten.native_layer_norm(x, [length], None, None, 1e-5)
        wanted = [True, False, False]
        backward = torch.ops.aten.native_batch_norm_backward(
            g, x, None, None, None, norm[1], norm[2], True, 1e-5, wanted
        )
        return *norm[:2], *layer[:2], backward[0]

    batch, mean, layer, layer_mean, backward = compiled(codegen, program, x, gradient)(x, gradient)
    assert not batch.any() and not layer.any() and not backward.any()
    torch.testing.assert_close(mean, x.double().mean((0, 2)).float())
    torch.testing.assert_close(layer_mean, x.double().mean(2, keepdim=True).float())
