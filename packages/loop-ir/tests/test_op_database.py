"""Torch's operator database through lowering, scheduling and the evaluator, in planned memory."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten
from weft_loop_ir import ExternCall, Unsupported

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

# They read the sources of the whole stack, at each operator's samples, to find the unittest test that asks.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

SAMPLES = 2

LOW_PRECISION_DIFFERS = {
    "div": "eager rounds the quotient before or after truncation, by the path it takes",
    "log_softmax": "eager rounds intermediates to bfloat16",
    "grid_sampler_2d": "eager computes places and weights in bfloat16",
    "grid_sampler_3d": "eager computes places and weights in bfloat16",
    "logit": "eager rounds intermediates to bfloat16",
    "masked.log_softmax": "eager rounds intermediates to bfloat16",
    "nn.functional.adaptive_avg_pool3d": "eager sums in bfloat16",
    "nn.functional.grid_sample": "eager computes places and weights in bfloat16",
}


def functional_graph(
    op: Any, sample: Any
) -> tuple[torch.fx.GraphModule, list[torch.Tensor], tuple[Any, ...]] | None:
    """The ATen graph of one sample, its inputs and eager's results.

    None where torch can't trace the sample on fake tensors, or the graph writes to a tensor.  Strides are
    torch's fakes', which a stage that is given a graph goes by: those of torch 2.11 lie otherwise than what
    eager gives of Fourier transforms along inner dims.
    """
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> tuple[Any, ...]:
        rest = iter(tensors)
        values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensor, args, kwargs = tree_unflatten(values, spec)
        return tuple(tree_flatten(op.op(tensor, *args, **kwargs))[0])

    try:
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    except Exception:
        return None
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return None
    return graph, inputs, function(*inputs)


def is_random(schedule: weft_loop_ir.Schedule) -> bool:
    return any(
        isinstance(step, ExternCall) and torch.Tag.nondeterministic_seeded in step.operator.tags
        for step in schedule.steps
    )


def promised(graph: torch.fx.GraphModule, results: tuple[Any, ...]) -> list[Any]:
    """What the graph says of its results: a fake of each tensor; the result itself where data decides."""
    (nodes,) = graph.graph.output_node().args
    fakes = [getattr(node, "meta", {}).get("val") for node in nodes]  # type: ignore[union-attr]
    return [
        fake if isinstance(fake, torch.Tensor) and has_known_layout(fake) else result
        for fake, result in zip(fakes, results, strict=True)
    ]


def has_known_layout(fake: torch.Tensor) -> bool:
    return all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    pairs = zip(left.shape, left.stride(), right.stride(), strict=True)
    return left.numel() < 2 or all(n == 1 or a == b for n, a, b in pairs)


DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
# Every run has each operator in the first of its dtypes, and a few in others.
CASES = [
    pytest.param(
        op,
        dtype,
        id=f"{op.name}{op.variant_test_name}-{str(dtype)[6:]}",
        marks=() if number == 0 or place % 6 == 0 else pytest.mark.slow,
    )
    for place, op in enumerate(op_db)
    if "empty" not in op.name  # whose contents are not defined
    for number, dtype in enumerate(
        dtype
        for dtype in DTYPES
        if dtype in op.supported_dtypes("cpu")
        and not (dtype is torch.bfloat16 and op.name in LOW_PRECISION_DIFFERS)
    )
]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_operator(op: Any, dtype: torch.dtype) -> None:
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for sample in itertools.islice(samples, SAMPLES):
        traced = functional_graph(op, sample)
        if traced is None:
            continue
        graph, inputs, expected = traced
        try:
            loop_graph = weft_loop_ir.lower(graph)
        except Unsupported:
            continue
        schedule = weft_loop_ir.schedule(loop_graph)
        weft_loop_ir.verify(schedule)
        if is_random(schedule):
            continue
        results = weft_loop_ir.evaluate(schedule, inputs, use_arena=True)
        promises = promised(graph, expected)
        for result, value, promise in zip(results, expected, promises, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            low = {"rtol": 1.6e-2, "atol": 1e-3} if value.dtype == torch.bfloat16 else {}
            torch.testing.assert_close(result, value, equal_nan=True, **low)
            assert same_strides(result, promise)
