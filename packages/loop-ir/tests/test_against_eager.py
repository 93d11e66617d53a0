"""Lowered and scheduled graphs, run by the reference evaluator, equal eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F


def schedule_of(
    function: Callable[..., Any],
    inputs: list[torch.Tensor],
    lowering: weft_loop_ir.LoweringOptions | None = None,
) -> weft_loop_ir.Schedule:
    """The schedule of a function of tensors that gives one tensor."""
    with torch.no_grad():
        graph = make_fx(lambda *values: (function(*values),), tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph, options=lowering))
    weft_loop_ir.verify(schedule)
    return schedule


def check(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    lowering: weft_loop_ir.LoweringOptions | None = None,
) -> weft_loop_ir.Schedule:
    schedule = schedule_of(function, list(inputs), lowering)
    (result,) = weft_loop_ir.evaluate(schedule, list(inputs))
    expected = function(*inputs)
    torch.testing.assert_close(result, expected, equal_nan=True)
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    return schedule


def kernels(schedule: weft_loop_ir.Schedule) -> int:
    return sum(isinstance(step, weft_loop_ir.Kernel) for step in schedule.steps)


POINTWISE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.sign,
    torch.relu,
    torch.round,
    torch.isnan,
    F.gelu,
    F.silu,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: torch.where(x > 0, x, -x),
    lambda x: x.masked_fill(x < 0, 7),
    lambda x: x.to(torch.int64) // 2,
    lambda x: x * 2 + 1,
    lambda x: 1 / x,
    lambda x: x**2,
    lambda x: x.to(torch.bfloat16) + 1,
]

VALUES = {
    "plain": torch.randn(5, 7),
    "special": torch.tensor([0.0, -0.0, 1.5, -2.5, torch.inf, -torch.inf, torch.nan]),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(0.75),
    "transposed": torch.randn(6, 4).t(),
    "strided": torch.randn(8, 8)[::2, 1::3],
    "expanded": torch.randn(1, 5).expand(3, 5),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("number", range(len(POINTWISE)))
def test_pointwise(number: int, name: str) -> None:
    if name == "special" and number == 13:
        pytest.skip("the conversion of NaN and infinity to an integer has no defined value")
    if name == "special" and POINTWISE[number] is F.gelu:
        pytest.skip("eager's vectorised kernel gives NaN at infinity, the formula its limit")
    check(POINTWISE[number], VALUES[name])


REDUCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.sum(),
    lambda x: x.sum(0),
    lambda x: x.mean(-1, keepdim=True),
    lambda x: x.amax(1),
    lambda x: x.argmax(0),
    lambda x: x.var(1),
    lambda x: (x > 0).any(0),
    lambda x: x.prod(1),
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x.logsumexp(1),
    lambda x: x / x.norm(dim=1, keepdim=True),
]


@pytest.mark.parametrize("name", ["plain", "transposed", "strided", "expanded"])
@pytest.mark.parametrize("number", range(len(REDUCTIONS)))
def test_reductions(number: int, name: str) -> None:
    check(REDUCTIONS[number], VALUES[name])


VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.t() * 2,
    lambda x: x[1:, ::2] + 1,
    lambda x: x.reshape(-1) + 1,
    lambda x: x.unsqueeze(1).expand(-1, 3, -1) * 2,
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: torch.stack([x, x + 1]),
    lambda x: x.flip(0) + 1,
    lambda x: x.roll(1, 0) + 1,
    lambda x: F.pad(x, (1, 2)) + 1,
    lambda x: x.diagonal() * 2,
    lambda x: x.chunk(2, 1)[1] + 1,
    lambda x: torch.arange(x.shape[0]).unsqueeze(1) + x,
    lambda x: F.embedding(torch.tensor([[0, 2], [1, 1]]), x),
    lambda x: x[torch.tensor([2, 0])] + 1,
    lambda x: x.index_put((x > 0,), torch.tensor(7.0)),
    lambda x: x.index_put((x[:, 0] > 0,), x[0], accumulate=True),
    lambda x: torch.ops.aten.permute_copy(x, [1, 0]) + 1,
    lambda x: torch.ops.aten.narrow_copy(x, 0, 1, 2),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views_and_indexing(number: int) -> None:
    check(VIEWS[number], VALUES["plain"])


def test_images() -> None:
    image = torch.randn(2, 3, 8, 8)
    check(lambda x: F.max_pool2d(x, 2), image)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), image)
    check(lambda x: F.interpolate(x, scale_factor=2), image)
    check(lambda x: F.group_norm(x, 3), image)
    mean, variance = torch.randn(3), torch.rand(3)
    normalized = check(lambda x, m, v: F.batch_norm(x, m, v, m, v).relu(), image, mean, variance)
    assert kernels(normalized) == 1
    assert not normalized.fallbacks
    check(lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3)) + 1, image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_deviation_of_equal_numbers_is_0(dtype: torch.dtype) -> None:
    row = torch.linspace(0.1, 3.3, 40, dtype=dtype)
    schedule = schedule_of(lambda x: x.std(0), [row.expand(3, 40)])
    (result,) = weft_loop_ir.evaluate(schedule, [row.expand(3, 40)])
    assert torch.equal(result, torch.zeros_like(row))


def test_a_mean_of_nothing_is_nan() -> None:
    check(lambda x: torch.var_mean(x, 1)[1], torch.empty(3, 0))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (torch.max, torch.empty(0, 3)),
        (torch.min, torch.empty(3, 0, dtype=torch.int64)),
        (lambda x: x.max(0).values, torch.empty(0, 3)),
        (lambda x: x.min(1).indices, torch.empty(3, 0)),
        (torch.argmax, torch.tensor([True, False])),
        (lambda x: x.argmin(1), torch.tensor([[True, False]])),
        (lambda x: x.softmax(0), torch.tensor([1, 2])),
        (lambda x: x.log_softmax(-1), torch.tensor([[1, 2]], dtype=torch.uint8)),
        (lambda x: x.softmax(1), torch.tensor(1.0)),
        (lambda x: x.log_softmax(2), torch.ones(2, 3)),
    ],
)
def test_reductions_that_eager_rejects(function: Callable[..., Any], x: torch.Tensor) -> None:
    """Fake tensors accept them, so the error is that of eager's operator when the program runs."""
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(x)
    with pytest.raises(expected.type) as found:
        weft_loop_ir.evaluate(schedule_of(function, [x]), [x])
    assert str(found.value) == str(expected.value)


def test_batch_norm_moves_its_running_statistics() -> None:
    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._native_batch_norm_legit_functional(*values, True, 0.1, 1e-5)

    inputs = [torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3)]
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    assert not schedule.fallbacks
    expected = function(*inputs)
    for result, value in zip(weft_loop_ir.evaluate(schedule, inputs), expected, strict=True):
        torch.testing.assert_close(result, value)


def test_softmax_and_layer_norm_are_one_kernel_each() -> None:
    x = torch.randn(4, 16)
    assert kernels(check(lambda x: torch.softmax(x * 2, -1), x)) == 1
    assert kernels(check(lambda x: F.layer_norm(x + 1, (16,)), x)) == 1
    assert kernels(check(lambda x: F.gelu(x * 2 + 1) * x, x)) == 1


def test_a_contraction_is_a_library_call() -> None:
    schedule = check(lambda x, y: F.gelu(x @ y), torch.randn(3, 4), torch.randn(4, 5))
    externs = [step for step in schedule.steps if isinstance(step, weft_loop_ir.ExternCall)]
    assert [step.reason for step in externs] == ["library"]
    assert not schedule.fallbacks


@pytest.mark.parametrize(
    ("left", "right", "are_loops"),
    [
        ((3, 5, 1), (3, 1, 7), True),
        ((3, 5, 1), (3, 1, 0), True),
        ((3, 5, 9), (3, 9, 1), True),
        ((3, 1, 9), (3, 9, 7), True),
        ((3, 1, 1), (3, 1, 1), True),
        ((3, 4, 9), (3, 9, 7), False),
        ((3, 1, 15), (3, 15, 68), True),
        ((3, 1, 15), (3, 15, 69), False),
        ((3, 1, 16), (3, 16, 4), False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_matrices_that_are_read_once_are_loops(
    left: tuple[int, ...], right: tuple[int, ...], are_loops: bool, dtype: torch.dtype
) -> None:
    """Products of columns and rows, of small matrices and vectors; with what makes operands, and ``inf``."""
    x, y, z = (torch.randn(size).to(dtype) for size in (left, right, (*left[:-1], right[-1])))
    x[0, 0, 0] = torch.inf
    options = weft_loop_ir.LoweringOptions(inlined_vectors=1 << 10)
    for function, operands in (
        (lambda x, y: torch.bmm(x.sin() * 2, y), (x, y)),
        (lambda x, y: torch.bmm(x.neg().mT.contiguous().mT, y), (x, y)),
        (lambda z, x, y: torch.baddbmm(z, x, y), (z, x, y)),
        (lambda z, x, y: torch.addmm(z[0], x[0], y[0]), (z, x, y)),
    ):
        schedule = check(function, *operands, lowering=options)
        assert (kernels(schedule) == len(schedule.steps)) == are_loops


def test_an_operator_without_a_rule_is_extern_and_counted() -> None:
    schedule = check(lambda x: torch.cumsum(x, 0) + 1, torch.randn(3, 4))
    assert sum(schedule.fallbacks.values()) == 1


def test_the_dump_names_every_kernel() -> None:
    schedule = schedule_of(lambda x: torch.softmax(x, -1), [torch.randn(3, 4)])
    text = weft_loop_ir.format_schedule(schedule)
    for step in schedule.steps:
        assert step.name in text
