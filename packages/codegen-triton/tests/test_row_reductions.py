"""What is reduced of the rows of a contraction's result, in the kernel that makes it, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_loop_ir import ExternCall, Schedule, all_items, evaluate

T = torch.Tensor
aten = torch.ops.aten


@dataclass
class Found:
    """A schedule with every contraction in a kernel of ours, and what it gives for ``inputs``."""

    schedule: Schedule
    results: list[T]

    @property
    def matmuls(self) -> list[MatmulKernel]:
        return [k for k in all_items(self.schedule.steps) if isinstance(k, MatmulKernel)]

    @property
    def reductions(self) -> int:
        return sum(len(matmul.reductions) for matmul in self.matmuls)


ERROR = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Of results, relative to the largest number."""


GPUS = {"a tile a program": REFERENCE, "several": replace(REFERENCE, multiprocessors=1)}


def found(
    codegen: TritonCodegen,
    function: Callable[..., Any],
    *inputs: T,
    compared: int | None = None,
    gpu: Gpu = REFERENCE,
) -> Found:
    """``function`` on ``gpu`` with its sums of 32 rows and more split, as those of thousands are.

    So many results are ``compared`` with the evaluator's, all without.
    """
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    lowered = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    options = replace(codegen.schedule_options, split_column_elements=32)
    plain = weft_loop_ir.schedule(lowered, options)
    schedule = fuse_matmuls(plain, lambda forms: forms[0], options, gpu)
    weft_loop_ir.verify(schedule)
    fusing = TritonCodegen(replace(codegen.options, fuse_matmuls=True, gpu=gpu))
    results = list(fusing.compile(plain, {})(*inputs))
    evaluated = evaluate(schedule, inputs, use_arena=True)
    for got, same in zip(results[:compared], evaluated, strict=compared is None):
        if got.is_floating_point():
            assert_close(got, same.double(), ERROR[inputs[0].dtype])
    return Found(schedule, results)


def assert_close(got: T, exact: T, bound: float) -> None:
    scale = exact.abs().max().clamp(min=1e-30)
    assert ((got.double() - exact).abs().max() / scale).item() <= bound


def both(x: T, w: T) -> tuple[T, T]:
    y = x @ w
    return y, y.sum(0)


def gradients_of_a_layer(g: T, w: T, mask: T) -> tuple[T, T]:
    y = torch.where(mask > 0, g @ w, 0.0)
    return y, y.sum(0)


def with_others(x: T, w: T, z: T) -> tuple[T, T, T]:
    y = x @ w
    return y, (y * z).sum(0), y.sum(0)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int, int]] = {
    "a sum besides": (both, ((320, 40), (40, 72)), 1, 0),
    "a sum alone": (lambda x, w: (x @ w).sum(0), ((320, 40), (40, 72)), 1, 1),
    "the largest": (lambda x, w: (x @ w).amax(0), ((832, 32), (32, 48)), 1, 1),
    "the least, of one tile": (lambda x, w: (x @ w).relu().amin(0), ((33, 32), (32, 48)), 1, 1),
    "a product": (lambda x, w: ((x @ w).float() / 8 + 1).prod(0), ((320, 32), (32, 16)), 1, 1),
    "a bias's gradient": (gradients_of_a_layer, ((320, 32), (32, 48), (320, 48)), 1, 0),
    "with others": (with_others, ((384, 32), (32, 48), (384, 48)), 1, 0),
    "moments": (lambda x, w: torch.var_mean(x @ w, 0), ((320, 32), (32, 80)), 1, 1),
    "a mean of one tile": (lambda x, w: (x @ w).mean(0) + 1, ((33, 32), (32, 48)), 1, 1),
    "few rows": (lambda x, w: (x @ w).sum(0), ((7, 96), (96, 40)), 1, 1),
    "rows that no tile divides": (lambda x, w: (x @ w).sum(0), ((350, 32), (32, 40)), 0, 0),
    "along the columns": (lambda x, w: (x @ w).sum(1), ((320, 32), (32, 40)), 0, 0),
    "of a batch": (lambda x, w: (x @ w).sum(1), ((3, 128, 32), (3, 32, 40)), 0, 0),
    "a place": (lambda x, w: (x @ w).argmax(0), ((320, 32), (32, 40)), 0, 0),
    "of half of the rows": (lambda x, w: (x @ w)[:128].sum(0), ((320, 32), (32, 40)), 0, 0),
}
"""Functions of matrices of these sizes; reductions in a matmul, and results that are in no memory."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gpu", GPUS)
def test_beside_float64(codegen: TritonCodegen, name: str, dtype: torch.dtype, gpu: str) -> None:
    function, sizes, reductions, dropped = CASES[name]
    inputs = [(torch.randn(size) / size[0] ** 0.5).to(dtype) for size in sizes]
    got = found(codegen, function, *inputs, gpu=GPUS[gpu])
    wanted = function(*(t.double() for t in inputs))
    exact = wanted if isinstance(wanted, tuple) else (wanted,)
    for result, one in zip(got.results, exact, strict=True):
        if not one.is_floating_point():
            continue
        assert_close(result, one, ERROR[dtype])
    assert got.reductions == reductions
    assert sum(len(m.dropped) for m in got.matmuls) == dropped


def convolution_and_norm(x: T, w: T, mean: T, var: T, scale: T, shift: T) -> tuple[T, ...]:
    """The convolution, and batch norm's results and statistics for it."""
    y = F.conv2d(x, w)
    return y, *aten._native_batch_norm_legit_functional(y, scale, shift, mean, var, True, 0.1, 1e-5)


def channels_last(*size: int) -> T:
    return torch.randn(size).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e3])
@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0, -1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gpu", GPUS)
def test_statistics_of_a_batch_norm(
    codegen: TritonCodegen, dtype: torch.dtype, offset: float, spread: float, gpu: str
) -> None:
    """At any offset and scale, beside float64 of what the convolution gave."""
    x, w = channels_last(5, 24, 8, 8), channels_last(20, 24, 1, 1) / 5
    x = x * spread / 30
    x[:, 0], w[:, 0] = offset / 8, 8 / (1 + abs(offset) / 100)
    channels = [torch.zeros(20), torch.zeros(20), torch.rand(20), torch.rand(20)]
    inputs = [x.to(dtype), w.to(dtype), *channels]
    got = found(codegen, convolution_and_norm, *inputs, compared=1, gpu=GPUS[gpu])
    assert got.reductions == 1
    y, *_, moved_mean, moved_var = got.results
    wide = y.double()
    mean, deviation = wide.mean((0, 2, 3)), wide.std((0, 2, 3))
    rounding = torch.finfo(torch.float32).eps
    assert (
        (10 * moved_mean.double() - mean).abs() <= rounding * (8 * deviation + 2 * mean.abs())
    ).all()
    allowed = 8 * deviation**2 + 2 * mean.abs() * deviation + rounding * mean**2
    assert ((10 * moved_var.double() - deviation**2).abs() <= rounding * allowed).all()


def test_each_channel_by_itself(codegen: TritonCodegen) -> None:
    def function(x: T, w: T) -> tuple[T, T, T]:
        y = F.conv2d(x, w, padding=1, groups=32)
        return y, *torch.var_mean(y, (0, 2, 3))

    inputs = channels_last(5, 32, 8, 8), channels_last(32, 1, 3, 3)
    got = found(codegen, function, *inputs)
    for result, one in zip(got.results, function(*(t.double() for t in inputs)), strict=True):
        assert_close(result, one, 1e-5)
    assert got.reductions == 1
    assert not any(isinstance(step, ExternCall) for step in got.schedule.steps)


def test_what_is_written_between(codegen: TritonCodegen) -> None:
    """A result that is read before the sum, and a sum that reads what comes after, stay as they are."""

    def function(x: T, w: T, z: T) -> tuple[T, T]:
        y = x @ w
        other = (y @ z).relu()
        return y, (y * other).sum(0)

    inputs = [torch.randn(n) / 6 for n in ((320, 32), (32, 48), (48, 48))]
    got = found(codegen, function, *inputs)
    for result, one in zip(got.results, function(*(t.double() for t in inputs)), strict=True):
        assert_close(result, one, 1e-5)


def test_parts_are_tiles(codegen: TritonCodegen) -> None:
    got = found(codegen, both, torch.randn(320, 40), torch.randn(40, 72))
    (matmul,) = got.matmuls
    (made,) = matmul.made
    assert made.layout.size[0] == 320 // matmul.rows_of_program
    assert {tile.rows for tile in matmul.tiles} == {matmul.tile.rows}
    assert matmul.repeats == 1


def test_a_program_makes_several_tiles(codegen: TritonCodegen) -> None:
    inputs = torch.randn(320, 40), torch.randn(40, 72)
    (matmul,) = found(codegen, both, *inputs, gpu=GPUS["several"]).matmuls
    assert matmul.repeats > 1
