"""Numbers on the CPU that graphs on a GPU compute: in vectors, before the part that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.recordable import is_recordable
from weft_codegen_triton.rewriting.scalars import compute_side_by_side

Tensors = list[torch.Tensor]


def traced(function: Callable[..., Any], matrices: int, numbers: int) -> torch.fx.GraphModule:
    """The graph of ``function`` of so many matrices on a GPU and numbers on the CPU."""
    with FakeTensorMode():
        given = [torch.empty(4, 4, device="cuda") for _ in range(matrices)]
        steps = [torch.empty(()) for _ in range(numbers)]
        return make_fx(function, tracing_mode="fake")(given, steps)


def without_gpu(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    graph.recompile()
    return graph


def adam(given: Tensors, steps: Tensors) -> Tensors:
    """Of parameters and gradients, the second half of ``given``; the last ones by another beta."""
    half = len(given) // 2
    counts = [step + 1 for step in steps]
    found = []
    for k, (parameter, gradient, count) in enumerate(
        zip(given[:half], given[half:], counts, strict=True)
    ):
        count = count.to(torch.float64)
        scale = 1 - (0.9 if k < half - 1 else 0.95) ** count
        root = (1 - 0.999**count) ** 0.5
        found.append(parameter - gradient.div(gradient.abs() / root + 1e-8) * (0.1 / scale))
    return found + counts


def nadam(given: Tensors, numbers: Tensors) -> Tensors:
    """Each of ``given`` has a step and a product, which are computed with each other."""
    steps, products = numbers[: len(given)], numbers[len(given) :]
    counts = [step + 1 for step in steps]
    momenta = [0.9 * (1 - 0.5 * 0.96**count) for count in counts]
    made = [product * momentum for product, momentum in zip(products, momenta, strict=True)]
    found = [g * m / (1 - p) for g, m, p in zip(given, momenta, made, strict=True)]
    return [*found, *counts, *made]


def rectified(given: Tensors, steps: Tensors) -> Tensors:
    """A comparison chooses one of two numbers."""
    counts = [step + 1 for step in steps]
    scales = [
        torch.where(count > 1.2, torch.full((), 2.0) / count, torch.full((), 0.5))
        for count in counts
    ]
    return [*(g * scale for g, scale in zip(given, scales, strict=True)), *counts]


@pytest.mark.parametrize(
    ("function", "matrices", "numbers"),
    [(adam, 6, 3), (adam, 2, 1), (nadam, 3, 6), (rectified, 3, 3)],
)
def test_numbers_are_computed_in_vectors(
    codegen: TritonCodegen, function: Callable[..., Any], matrices: int, numbers: int
) -> None:
    graph = traced(function, matrices, numbers)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    assert is_recordable(schedule)
    copies = [str(node) for node in graph.graph.nodes if node.kwargs.get("non_blocking")]
    assert 1 <= len(copies) <= 2
    host = codegen.print(schedule).host
    assert host.head_steps == sum(
        isinstance(step, weft_loop_ir.ExternCall) for step in schedule.steps
    )
    assert "def prepare(" in host.source

    given = [torch.randn(4, 4) for _ in range(matrices)]
    steps = [torch.tensor(float(k + 1)) / 8 for k in range(numbers)]
    kept = [step.clone() for step in steps]
    got = without_gpu(graph)(given, steps)
    for one, other in zip(got, function(given, kept), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert one.dtype == other.dtype
    assert steps == kept
    assert len({t.untyped_storage().data_ptr() for t in got}) == len(got)  # each its own memory


def integers(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0] * numbers[0], numbers[0].to(torch.int64) + 1]


def constants(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0] * numbers[0], numbers[0] * torch.scalar_tensor(2.0)]


def from_the_gpu(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0] * 2, given[0].sum().cpu() + numbers[0]]


def not_returned(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0] * (numbers[0] + 1)]


def drawn(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0], torch.bernoulli(numbers[0])]


def shaped(given: Tensors, numbers: Tensors) -> Tensors:
    return [given[0], numbers[0] + torch.ones(3)]


@pytest.mark.parametrize(
    "function", [integers, constants, from_the_gpu, not_returned, drawn, shaped]
)
def test_others_are_left_as_they_are(function: Callable[..., Any]) -> None:
    graph = traced(function, 1, 1)
    before = str(graph.graph)
    assert not compute_side_by_side(graph.graph)
    assert str(graph.graph) == before


def test_a_number_of_the_call_is_one_for_all_lanes() -> None:
    """A learning rate that varies, which a schedule sets."""

    def update(given: Tensors, steps: Tensors, rate: float) -> Tensors:
        counts = [step + 1 for step in steps]
        return [*(g - rate / count for g, count in zip(given, counts, strict=True)), *counts]

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes, source = mode.shape_env, ConstantSource("rate")
        symbol = shapes.create_symbol(0.5, source, DimDynamic.DYNAMIC)
        rate = shapes.create_symfloatnode(symbol, hint=0.5, source=source)
        fakes = [torch.empty(4, 4, device="cuda") for _ in range(2)]
        graph = make_fx(update)(fakes, [torch.empty(()) for _ in range(2)], rate)
    assert compute_side_by_side(graph.graph)
    graph.recompile()
    given, steps = [torch.randn(4, 4) for _ in range(2)], [torch.tensor(3.0), torch.tensor(4.0)]
    for one, other in zip(
        without_gpu(graph)(given, steps, 0.5), update(given, steps, 0.5), strict=True
    ):
        torch.testing.assert_close(one, other)
