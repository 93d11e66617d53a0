"""Scatters that combine what meets at a place, beside eager, and what is left to torch for one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from comparison import check, schedule_of, with_gradients
from weft_codegen_cpp import CppCodegen

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def values_of(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.randint(-4, 5, size).to(dtype) + (0.5 if dtype.is_floating_point else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(codegen: CppCodegen, include_self: bool, dtype: torch.dtype) -> None:
    """Places met several times, once and never; strided sources larger than the indices."""

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            x.scatter_reduce(d, i, s.t(), reduce, include_self=include_self)
            for reduce in REDUCTIONS
            for d in (0, 1)
        )

    samples = [
        [values_of(dtype, 6, 7), torch.randint(0, 4, (n, 5)), values_of(dtype, 8, 6)]
        for n in (5, 3)
    ]
    schedule = check(codegen, function, samples, symbolic=True, tolerance=1e-5)
    assert not schedule.fallbacks


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
@pytest.mark.parametrize("include_self", [True, False])
def test_index_reduce(codegen: CppCodegen, include_self: bool, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            x.index_reduce(1, i, s, reduce, include_self=include_self) for reduce in REDUCTIONS[1:]
        )

    inputs = [values_of(dtype, 3, 7), torch.tensor([4, 0, 4, 4, 2]), values_of(dtype, 3, 5)]
    assert not check(codegen, function, [inputs]).fallbacks


def test_scatter_with_reduce(codegen: CppCodegen) -> None:
    index = torch.tensor([[0, 2, 0], [1, 1, 1]])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.scatter(1, i, s, reduce="add"),
            x.scatter(1, i, s, reduce="multiply"),
            x.scatter(0, i[:, :2].clamp(max=1), 1.5, reduce="multiply"),
        )

    inputs = [torch.randn(2, 4), index, torch.randn(2, 3)]
    schedule = check(codegen, function, [inputs], tolerance=1e-5)
    assert not schedule.fallbacks


def test_nan_infinity_and_nothing(codegen: CppCodegen) -> None:
    index = torch.tensor([0, 0, 1, 1, 2, 2])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = [x.scatter_reduce(0, i, s, reduce) for reduce in REDUCTIONS]
        empty = [x.scatter_reduce(0, i[:0], s, r, include_self=False) for r in REDUCTIONS]
        return (*results, *empty)

    x = torch.tensor([1.0, torch.nan, -torch.inf, 2.0])
    source = torch.tensor([torch.nan, 1.0, 3.0, torch.inf, -torch.inf, 5.0])
    check(codegen, function, [[x, index, source]])


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax"])
def test_gradients(codegen: CppCodegen, reduce: str) -> None:
    index = torch.tensor([[0, 2, 0], [1, 1, 1]])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, i, s, reduce)

    x, s = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    inputs = [x, index, s]
    check(codegen, with_gradients(function), [inputs])


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


ORDERED: dict[str, Any] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(400, 3), s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(400, 3), s, "prod"),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "mean"),
    "embedding": lambda x, i, s: torch.ops.aten.embedding_dense_backward(s, i, 9, -1, False) + x,
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", ORDERED)
def test_additions_have_eagers_order(codegen: CppCodegen, name: str) -> None:
    """Where torch's programs ask for determinism, to the last bit; float sums are torch's own calls."""

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (ORDERED[name](x, i, s),)

    inputs = [torch.randn(9, 3), torch.randint(0, 9, (400,)), torch.rand(400, 3) + 0.5]
    schedule = schedule_of(function, inputs, symbolic=False)
    assert schedule.fallbacks
    program = codegen.compile(schedule, {})
    assert torch.equal(program(*inputs)[0], function(*inputs)[0])


@pytest.mark.usefixtures("deterministic")
def test_what_has_no_order_stays_a_loop(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = torch.zeros(9, dtype=torch.int64).index_add(0, i, torch.ones_like(i))
        return x.scatter_reduce(0, i, s, "amax"), counts

    inputs = [torch.randn(9), torch.randint(0, 9, (400,)), torch.randn(400)]
    assert not check(codegen, function, [inputs]).fallbacks


def test_an_index_without_dims(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = x[:, :1] + 1
        point = x.sum()
        return (
            x.index_select(1, i),
            x.index_reduce(1, i, one, "amax"),
            torch.ops.aten.index_add(x, 1, i, one),
            point.index_select(0, i * 0),
        )

    assert not check(codegen, function, [[torch.randn(3, 4), torch.tensor(2)]]).fallbacks
