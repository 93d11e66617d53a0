"""Random numbers in kernels: their distributions, their seeds, and that a graph gets the same ones twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_loop_ir import ExternCall, Kernel, Schedule

COUNT = 1 << 12


def drawn(
    codegen: TritonCodegen, function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake"
) -> tuple[Schedule, Callable[..., Any], torch.fx.GraphModule]:
    """The schedule, the program, and the rewritten graph, whose operators run it in eager."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode=mode)(*inputs)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    return schedule, codegen.compile(schedule, {}), graph


def check(
    codegen: TritonCodegen, function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The results, equal to those of the operators that stand for the random ones."""
    schedule, program, graph = drawn(codegen, function, *inputs)
    calls = [s for s in schedule.steps if isinstance(s, ExternCall)]
    assert [str(c.operator) for c in calls] == ["aten.randint.low"]  # the seeds
    torch.manual_seed(3)
    results = program(*inputs)
    torch.manual_seed(3)
    for got, want, eager in zip(
        results, as_tuple(graph(*inputs)), as_tuple(function(*inputs)), strict=True
    ):
        rtol = 1e-4 if got.itemsize > 2 else 1e-2  # the interpreter rounds bfloat16 toward 0
        torch.testing.assert_close(got, want, rtol=rtol, atol=1e-5)
        assert (got.stride(), got.dtype) == (eager.stride(), eager.dtype)
    again = program(*inputs)
    assert not torch.equal(again[0], results[0])  # the generator has moved on
    return results


def as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def normal_share(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


DISTRIBUTIONS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rand": (lambda x: torch.rand(COUNT), lambda v: v),
    "rand_like": (lambda x: torch.rand_like(x), lambda v: v),
    "randn": (lambda x: torch.randn(COUNT // 2, 2), normal_share),
    "randn_like": (lambda x: torch.randn_like(x), normal_share),
    "uniform": (lambda x: torch.ops.aten.uniform(x, -1.0, 3.0), lambda v: (v + 1) / 4),
    "normal": (
        lambda x: torch.ops.aten.normal_functional(x, 1.0, 2.0),
        lambda v: normal_share((v - 1) / 2),
    ),
    "normal of tensors": (
        lambda x: torch.normal(x * 0 + 1, x * 0 + 2),
        lambda v: normal_share((v - 1) / 2),
    ),
    "exponential": (
        lambda x: torch.ops.aten.exponential(x, 2.0),
        lambda v: 1 - torch.exp(-2 * v),
    ),
}
"""Functions, and the distribution function under which their results are uniform."""


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(codegen: TritonCodegen, name: str) -> None:
    function, share = DISTRIBUTIONS[name]
    (values,) = check(codegen, function, torch.randn(COUNT))
    ranks = share(values.flatten().double()).sort().values
    steps = torch.arange(1, COUNT + 1) / COUNT
    assert float((ranks - steps).abs().max()) < 1.95 / math.sqrt(COUNT)  # Kolmogorov, 1 in 1000
    assert abs(float(torch.corrcoef(values.flatten().view(-1, 2).t())[0, 1])) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_uniform_numbers_in_16_bits_stay_below_1(
    codegen: TritonCodegen, dtype: torch.dtype
) -> None:
    (values,) = check(codegen, torch.rand_like, torch.randn(COUNT).to(dtype))
    assert float(values.min()) == 0.0 and float(values.max()) < 1.0
    assert abs(float(values.double().mean()) - 0.5) < 0.02


def test_truth_by_chance(codegen: TritonCodegen) -> None:
    shares = torch.tensor([0.0, 0.25, 1.0]).expand(COUNT, 3)
    first, second = check(
        codegen,
        lambda p: (torch.ops.aten.bernoulli.p(p.contiguous(), 0.75), torch.bernoulli(p)),
        shares,
    )
    assert abs(float(first.mean()) - 0.75) < 0.02
    means = second.mean(0)
    assert float(means[0]) == 0.0 and float(means[2]) == 1.0 and abs(float(means[1]) - 0.25) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    x = torch.randn(64, 4, 8, 8).to(dtype).to(memory_format=torch.channels_last)
    result, mask = check(codegen, lambda x: torch.ops.aten.native_dropout(x, 0.25, True), x)
    assert mask.dtype is torch.bool and mask.stride() == x.stride()
    torch.testing.assert_close(result, x * mask / 0.75, rtol=1e-2, atol=1e-3)
    assert abs(float(mask.double().mean()) - 0.75) < 0.02


def test_dropout_is_one_kernel_with_what_surrounds_it(codegen: TritonCodegen) -> None:
    schedule, _, _ = drawn(
        codegen, lambda x: torch.native_dropout(F.gelu(x), 0.5, True)[0] + x, torch.randn(64, 64)
    )
    assert sum(isinstance(s, Kernel) for s in schedule.steps) == 1


def test_each_operator_has_a_seed_and_each_element_a_number(codegen: TritonCodegen) -> None:
    a, b = check(codegen, lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.randn(COUNT))
    assert len(a.unique()) > COUNT - 100
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.05


def test_a_transposed_reader_sees_the_same_numbers(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.rand_like(x)
        return y, y.t().contiguous(), y.sum(1)

    y, turned, sums = check(codegen, function, torch.randn(70, 40))
    torch.testing.assert_close(turned, y.t())
    torch.testing.assert_close(sums, y.sum(1))


def test_sizes_may_vary(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.rand(x.shape[0], 1)

    _, program, graph = drawn(codegen, function, torch.randn(5, 7), mode="symbolic")
    for rows in (5, 9):
        x = torch.randn(rows, 7)
        torch.manual_seed(1)
        (result,) = program(x)
        torch.manual_seed(1)
        torch.testing.assert_close(result, graph(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rand_like(x, dtype=torch.float64),
        pytest.param(
            lambda x: torch.rand(4, generator=torch.default_generator),
            marks=pytest.mark.skipif(
                torch.__version__ < "2.13", reason="make_fx takes no generator"
            ),
        ),
        lambda x: torch.ops.aten.native_dropout(x, 1.0, True)[0],
        lambda x: torch.randperm(5),
    ],
    ids=["float64", "a generator", "nothing is kept", "a permutation"],
)
def test_others_stay_eager(codegen: TritonCodegen, function: Callable[..., Any]) -> None:
    x = torch.randn(4)
    _, program, _ = drawn(codegen, function, x)
    torch.manual_seed(5)
    (result,) = program(x)
    torch.manual_seed(5)
    torch.testing.assert_close(result, function(x))
