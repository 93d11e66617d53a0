"""Matmuls of the same few rows whose results one kernel reads: one kernel of all, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import compiled, schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_loop_ir import Kernel, all_items

T = torch.Tensor
Function = Callable[[T, T, T, T], T]


def gated(x: T, v: T, w: T, b: T) -> T:
    return F.silu(F.linear(x, v)) * F.linear(x, w)


def turned(x: T, v: T, w: T, b: T) -> T:
    """The other one is first."""
    return F.linear(x, w) - F.gelu(F.linear(x, v))


def with_biases(x: T, v: T, w: T, b: T) -> T:
    return torch.sigmoid(F.linear(x, v, b)) * F.linear(x, w, b * 2) + 1


def three(x: T, v: T, w: T, b: T) -> T:
    return torch.where(F.linear(x, v) > 0, F.linear(x, w), F.linear(x, v + w))


def quantised(x: T, v: T, w: T, b: T) -> T:
    v, w = ((t * 40).to(torch.int8).to(x.dtype) / 40 for t in (v, w))
    return F.relu(F.linear(x, v)) * F.linear(x, w)


ONE: dict[str, Function] = {f.__name__: f for f in (gated, turned, with_biases, three, quantised)}


def given(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float16) -> tuple[T, ...]:
    sizes = ((rows, inner), (columns, inner), (columns, inner), (columns,))
    return tuple((torch.randn(n) / n[-1] ** 0.3).to(dtype) for n in sizes)


def matmuls(source: str) -> list[str]:
    """The calls of a library, and the functions that add up products."""
    lines = source.splitlines()
    return [line for line in lines if "# extern" in line or line.endswith("KBLOCK):")]


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("size", [(1, 64, 48), (1, 2056, 33), (4, 96, 40), (16, 129, 32)], ids=str)
def test_beside_float64(codegen: TritonCodegen, size: tuple[int, int, int], name: str) -> None:
    function, inputs = ONE[name], given(*size)
    program = compiled(codegen, function, *inputs)
    exact, eager = function(*(t.double() for t in inputs)), function(*inputs)
    (got,) = program(*inputs)
    error, allowed = ((t.double() - exact).abs().max() / exact.abs().max() for t in (got, eager))
    assert error <= 1.5 * allowed + torch.finfo(got.dtype).eps
    assert len(matmuls(program.source)) == 1


APART: dict[str, tuple[Callable[..., Any], tuple[int, int, int]]] = {
    "many rows": (gated, (17, 64, 48)),
    "other rows": (lambda x, v, w, b: F.silu(F.linear(x, v)) * F.linear(x + 1, w), (2, 64, 48)),
    "read twice": (
        lambda x, v, w, b: (F.silu(F.linear(x, v)) * (y := F.linear(x, w)), y.sum()),
        (2, 64, 48),
    ),
    "elsewhere": (
        lambda x, v, w, b: F.silu(F.linear(x, v)) * F.linear(x, w).flip(1),
        (2, 64, 48),
    ),
    "columns apart": (
        lambda x, v, w, b: F.silu(F.linear(x, v)) * (x @ w.t().contiguous()),
        (1, 64, 48),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_matmuls_that_stay_apart(codegen: TritonCodegen, name: str) -> None:
    function, size = APART[name]
    inputs = given(*size)
    program = compiled(codegen, function, *inputs)
    expected = function(*inputs)
    for got, want in zip(
        program(*inputs), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    assert len(matmuls(program.source)) == 2


@pytest.mark.parametrize("name", ONE)
def test_nests(codegen: TritonCodegen, name: str) -> None:
    """What the kernel stands for is verified, and evaluated."""
    function, inputs = ONE[name], given(3, 40, 24)
    schedule = schedule_of(function, inputs, codegen)
    schedule = fuse_matmuls(schedule, lambda f: f[0], codegen.schedule_options, REFERENCE)
    weft_loop_ir.verify(schedule)
    kernels = [step for step in all_items(schedule.steps) if isinstance(step, Kernel)]
    assert sum("matmul" in k.name or "linear" in k.name for k in kernels) == 1
    (got,) = weft_loop_ir.evaluate(schedule, inputs)
    torch.testing.assert_close(got, function(*inputs), rtol=1e-2, atol=1e-2)
