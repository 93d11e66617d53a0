"""Sums of columns in kernels of rows, beside eager and the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.column_sums.find_sums import sum_columns_by_rows
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.kernel.column_totals import RowsAndColumns
from weft_loop_ir import Kernel, Schedule, evaluate, item_writes, verify

T = torch.Tensor
LONGEST = 4096


def schedule_of(function: Callable[..., object], *inputs: T, **written: int) -> Schedule:
    """The schedule of ``function``, sums of 64 rows split as those of thousands are.

    ``written``: of results (``r0``) the inputs in whose memory they are.
    """
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    lowered = weft_loop_ir.lower(graph)
    targets = {int(name[1:]): position for name, position in written.items()}
    options = replace(TritonCodegen().schedule_options, split_column_elements=64)
    return weft_loop_ir.schedule(weft_loop_ir.write_back(lowered, targets), options)


def fused(codegen: TritonCodegen, function: Callable[..., object], *inputs: T) -> Schedule:
    """The schedule of ``function`` with sums in kernels of rows; compares what it gives with eager."""
    schedule = schedule_of(function, *inputs)
    found = sum_columns_by_rows(schedule, codegen.schedule_options, REFERENCE, LONGEST)
    verify(found)
    wide = [t.double() for t in inputs]
    wanted = function(*wide)
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    compiled = codegen.compile(schedule, {})
    for results in (evaluate(found, inputs, use_arena=True), compiled(*inputs)):
        for got, want in zip(results, expected, strict=True):
            tolerance = 2e-2 if got.dtype in (torch.float16, torch.bfloat16) else 2e-3
            torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)
    first, second = (compiled(*inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return found


def rows_and_columns(schedule: Schedule) -> list[RowsAndColumns]:
    kernels = (k for step in schedule.steps for k in getattr(step, "kernels", (step,)))
    return [k for k in kernels if isinstance(k, RowsAndColumns)]


def rows(*size: int, dtype: torch.dtype = torch.float32) -> T:
    return torch.randn(size).to(dtype)


def layer_norm_gradients(g: T, x: T, w: T, mean: T, rstd: T) -> tuple[T, ...]:
    h = (x - mean) * rstd
    gw = g * w
    n = x.shape[-1]
    dx = rstd / n * (n * gw - gw.sum(-1, True) - h * (gw * h).sum(-1, True))
    kept = tuple(range(x.dim() - 1))
    return dx, (g * h).sum(kept), g.sum(kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("outer", [(160,), (8, 21), (2 * 89,), (3, 7, 8)], ids=str)
def test_gradients_of_a_layer_norm(
    codegen: TritonCodegen, outer: tuple[int, ...], dtype: torch.dtype
) -> None:
    def gradients(g: T, x: T, w: T, mean: T, rstd: T) -> tuple[T, ...]:
        wide = g.float() if g.dtype is not torch.float64 else g
        dx, *sums = layer_norm_gradients(wide, x, w, mean, rstd)
        return dx.to(g.dtype), *sums

    width = 40
    statistics = rows(*outer, 1), torch.rand(*outer, 1)
    inputs = rows(*outer, width, dtype=dtype), rows(*outer, width), rows(width), *statistics
    found = rows_and_columns(fused(codegen, gradients, *inputs))
    if outer == (178,):  # 89 is a prime number: there are no parts
        assert not found
    else:
        assert [len(kernel.sums) for kernel in found] == [1]


def test_sums_of_what_the_rows_compute(codegen: TritonCodegen) -> None:
    def function(g: T, x: T, w: T, mean: T, rstd: T, y: T) -> tuple[T, ...]:
        dx, *sums = layer_norm_gradients(g, x, w, mean, rstd)
        scaled = (dx * w).to(torch.float16 if g.dtype is torch.float32 else g.dtype)
        return dx, *sums, (dx * y).sum(0), scaled.to(g.dtype), scaled.to(g.dtype).sum(0)

    inputs = rows(160, 24), rows(160, 24), rows(24), rows(160, 1), rows(160, 1), rows(160, 24)
    (kernel,) = rows_and_columns(fused(codegen, function, *inputs))
    assert sum(len(k.writes) for k in kernel.sums) == 4


def test_sums_that_are_added_up(codegen: TritonCodegen) -> None:
    """Gradients of one layer norm's weights that several layers have: one loop over the parts of all."""

    def function(w: T, *layers: T) -> tuple[T, ...]:
        found = [
            layer_norm_gradients(*layers[i : i + 2], w, *layers[i + 2 : i + 4]) for i in (0, 4)
        ]
        (first, *sums), (second, *others) = found
        return first, second, *(a + b for a, b in zip(sums, others, strict=True))

    layers = [
        t for _ in range(2) for t in (rows(160, 24), rows(160, 24), rows(160, 1), rows(160, 1))
    ]
    found = rows_and_columns(fused(codegen, function, rows(24), *layers))
    assert sum(len(k.writes) for kernel in found for k in kernel.sums) == 4


SHARED: dict[str, tuple[Callable[..., object], bool]] = {
    "softmax": (lambda x: (x.softmax(1), x.sum(0)), True),
    "rows that are stored": (lambda x: ((x - x.mean(1, True)), (x - x.mean(1, True)).sum(0)), True),
    "softmax of columns": (lambda x: (x.softmax(0), x.sum(1)), True),
    "other columns": (lambda x: (x[:, :16].softmax(1), x.sum(0)), False),
    "products": (lambda x: (x.softmax(1), x.prod(0)), False),
    "largest of columns": (lambda x: (x.softmax(1), x.amax(0)), False),
    "sums that rows read": (lambda x: (x - x.sum(0)).softmax(1), False),
    "sums of sums": (lambda x: (x.softmax(1), x.sum(0).exp().sum()), True),
    "turned columns": (lambda x: (x.softmax(1), (x * x.flip(1)).sum(0)), True),
    "rows from the last": (lambda x: (x.softmax(1), (x * x.flip(0)).sum(0)), True),
}


@pytest.mark.parametrize("name", SHARED)
def test_where_rows_and_columns_meet(codegen: TritonCodegen, name: str) -> None:
    function, joins = SHARED[name]
    found = rows_and_columns(fused(codegen, function, rows(160, 32) / 64))
    assert bool(found) is joins


def test_rows_longer_than_a_block_stay_apart(codegen: TritonCodegen) -> None:
    schedule = schedule_of(lambda x: (x.softmax(1), x.sum(0)), rows(160, 32))
    assert sum_columns_by_rows(schedule, codegen.schedule_options, REFERENCE, 31) is schedule


def test_what_is_written_between_is_not_read_early(codegen: TritonCodegen) -> None:
    """An input that is written to after the rows have been read, and before its columns are added up."""

    def function(x: T) -> tuple[T, ...]:
        weights = x.softmax(1)
        after = weights.flip(0) * 2
        return after, weights, after.sum(0)

    x = rows(160, 32)
    schedule = schedule_of(function, x, r0=0)
    assert any("x_1" in writes for step in schedule.steps for writes in [item_writes(step)])
    found = sum_columns_by_rows(schedule, codegen.schedule_options, REFERENCE, LONGEST)
    assert not rows_and_columns(found)
    assert_equals_eager(codegen.compile(schedule, {})(x.clone()), function, [x])


def test_a_compiled_training_step(codegen: TritonCodegen) -> None:
    """Layer norms in a stack of blocks, with the gradients of their weights."""

    def step(x: T, *parameters: T) -> tuple[T, ...]:
        with torch.enable_grad():
            own = [p.detach().requires_grad_() for p in parameters]
            for w, b, m in zip(own[::3], own[1::3], own[2::3], strict=True):
                x = x + torch.tanh(F.layer_norm(x, w.shape, w, b) @ m)
            return torch.autograd.grad(x.square().mean(), own)

    parameters = [t for _ in range(2) for t in (rows(16), rows(16), rows(16, 16))]
    found = rows_and_columns(fused(codegen, step, rows(160, 16), *parameters))
    assert all(isinstance(k, Kernel) for k in found)
