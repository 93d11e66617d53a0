"""Type promotion, low precision, integers and special values equal eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def check(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    exact: bool = False,
    lowered: bool = True,
) -> None:
    graph = make_fx(lambda *v: tuple(tree_leaves(function(*v))), tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    assert not (lowered and schedule.fallbacks)
    results = weft_loop_ir.evaluate(schedule, list(inputs), use_arena=True)
    for result, expected in zip(results, tree_leaves(function(*inputs)), strict=True):
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {}
        torch.testing.assert_close(result, expected, equal_nan=True, **tolerance)
        assert result.stride() == expected.stride()


def sample(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.testing.make_tensor(size, dtype=dtype, device="cpu", low=0, high=9)


PAIRS = list(itertools.product(DTYPES, DTYPES))


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda d: str(d)[6:])
def test_promotion_of_pairs(left: torch.dtype, right: torch.dtype) -> None:
    a, b = sample(left, 3, 4), sample(right, 4)
    scalar = sample(right)
    check(
        lambda x, y, z: (x + y, x * z, x < y, x / (y + 1), torch.where(x > 1, x, z)), a, b, scalar
    )
    check(lambda x, y: (torch.maximum(x, y), x.eq(y), torch.logical_and(x, y)), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_numbers_promote_by_category_only(dtype: torch.dtype) -> None:
    check(lambda x: (x + 1, x * 2.5, x > 0.5, x + True, 3 / (x + 1)), sample(dtype, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_chains_round_as_eager_does(dtype: torch.dtype) -> None:
    x, y = torch.randn(64).to(dtype), torch.randn(64).to(dtype)
    check(lambda a, b: ((a + b) * a - b, a * 0.1 + b / 3), x, y, exact=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_remainders_and_whole_quotients_round_numbers_as_eager_does(dtype: torch.dtype) -> None:
    """Remainders are by the number as that type has it, quotients by the number itself."""
    x = (torch.arange(-40, 41) * 0.1).to(dtype)
    check(lambda v: (v % 0.1, torch.fmod(v, 0.1), 0.7 % v.abs().clamp(min=0.1)), x, exact=True)
    check(lambda v, n: (v % n, torch.fmod(v, n)), x, torch.tensor(0.1), exact=True)
    check(lambda v: (v // 0.1, torch.div(v, 0.1, rounding_mode="trunc")), x, exact=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integer_arithmetic_wraps_and_rounds_as_eager(dtype: torch.dtype) -> None:
    x = torch.tensor([-128, -7, -3, -1, 0, 1, 3, 7, 127]).to(dtype)
    check(
        lambda v: (v * 3 + 100, v // 4, v % 4, torch.div(v, 4, rounding_mode="trunc"), v**3, ~v),
        x,
        exact=True,
    )
    check(lambda v: (v.sum(), v.prod(), v.amax(), v.argmin(), v.any(), v << 1, v >> 1), x)
    if dtype != torch.uint8:
        check(lambda v: (v // -4, v % -4, torch.fmod(v, -4), -v, v.abs(), v.sign()), x, exact=True)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, torch.inf, -torch.inf, torch.nan])


def test_special_values_propagate_as_in_eager() -> None:
    x, y = SPECIAL[:, None], SPECIAL[None, :]
    check(
        lambda a, b: (
            torch.maximum(a, b),
            torch.minimum(a, b),
            torch.fmax(a, b),
            a / b,
            torch.remainder(a, b),
            torch.fmod(a, b),
            torch.floor_divide(a, b),
            torch.atan2(a, b),
            torch.copysign(a, b),
            torch.pow(a, b),
            torch.logaddexp(a, b),
            a == b,
            torch.xlogy(a, b),
        ),
        x,
        y,
    )
    check(
        lambda a: (a.amax(), a.amin(), a.argmax(), a.max(0), a.clamp(-1, 1), a.clamp_min(0)),
        SPECIAL,
    )
    check(
        lambda a: (a.isnan(), a.isinf(), a.signbit(), a.sign(), a.nan_to_num(), a.round()), SPECIAL
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_next_number_is_the_next_of_its_dtype(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    lowered = dtype != torch.bfloat16
    check(torch.nextafter, x[:, None], x[None, :], exact=True, lowered=lowered)


def test_ties_of_extrema_take_the_first_position() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [torch.nan, 2.0, torch.nan], [-1.0, -1.0, -2.0]])
    check(lambda v: (v.argmax(1), v.argmin(1), v.max(1), v.argmax(), v.min(0)), x)


def test_empty_and_scalar_tensors() -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        x = torch.empty(shape)
        check(lambda v: (v + 1, v.sum(), v.sum(0), v.prod(), v.exp() * 2, (v > 0).all()), x)
    scalar = torch.tensor(1.5)
    check(lambda v: (v.sum(), v.amax(), v.var(unbiased=False), v.softmax(0), v + v), scalar)


def test_index_out_of_range_is_an_index_error() -> None:
    x, index = torch.randn(4, 3), torch.tensor([1, 4])
    graph = make_fx(lambda v, i: (v[i] + 1,), tracing_mode="fake")(x, index)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    with pytest.raises(IndexError):
        weft_loop_ir.evaluate(schedule, [x, index])


def test_negative_indices_wrap_where_eager_wraps() -> None:
    x, index = torch.randn(4, 3), torch.tensor([-1, 0, -4])
    check(lambda v, i: v[i] * 2, x, index)
    graph = make_fx(lambda v, i: (torch.index_select(v, 0, i),), tracing_mode="fake")(x, index)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    with pytest.raises(IndexError):
        weft_loop_ir.evaluate(schedule, [x, index])


def test_scatters() -> None:
    x, source = torch.zeros(5, 3), torch.randn(4, 3)
    index = torch.tensor([[0, 1, 2], [3, 1, 0], [2, 2, 4], [0, 0, 0]])
    rows = torch.tensor([0, 2, 2, 4])
    check(lambda v, i, s: v.scatter_add(0, i, s) + 1, x, index, source)
    check(lambda v, i, s: torch.index_put(v, (i,), s, True) * 2, x, rows, source)
    check(lambda v, i, s: v.index_add(0, i, s), x, rows, source)
    unique = torch.tensor([3, 0, 4, 1])
    check(lambda v, i, s: torch.index_put(v, (i,), s), x, unique, source)


def test_ordered_additions_are_torchs() -> None:
    def function(values: torch.Tensor, rows: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.index_put(values, (rows,), source, True) * 2

    inputs = (torch.zeros(5, 3), torch.tensor([0, 2, 2, 4]), torch.randn(4, 3))
    torch.use_deterministic_algorithms(True)
    try:
        graph = make_fx(lambda *values: (function(*values),), tracing_mode="fake")(*inputs)
        lowered = weft_loop_ir.lower(graph)
    finally:
        torch.use_deterministic_algorithms(False)
    assert list(lowered.fallbacks) == ["aten.index_put.default"]
    (result,) = weft_loop_ir.evaluate(weft_loop_ir.schedule(lowered), inputs)
    torch.testing.assert_close(result, function(*inputs))


def test_parts_overwritten() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 3)
    check(
        lambda v, w: (
            v.slice_scatter(w, 1, 1, 4),
            v.slice_scatter(w, 1, 0, 6, 2),
            v.select_scatter(w[:, 0], 1, -1),
            v.diagonal_scatter(w[:, 0]),
        ),
        x,
        y,
    )
