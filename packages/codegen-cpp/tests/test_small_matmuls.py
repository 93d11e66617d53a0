"""Products of small matrices as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}


def check(codegen: CppCodegen, function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Compare with eager; gives the number of library calls."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    loop_graph = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    program = codegen.compile(weft_loop_ir.schedule(loop_graph), {})
    for result, expected in zip(program(*inputs), function(*inputs), strict=True):
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(
            result, expected, rtol=tolerance, atol=10 * tolerance, equal_nan=True
        )
        assert result.stride() == expected.stride()
    return program.extern_count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 7), (16, 16, 16), (1, 33, 40), (40, 1, 3)])
def test_matmuls(codegen: CppCodegen, dtype: torch.dtype, size: tuple[int, int, int]) -> None:
    m, n, k = size

    def function(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> Any:
        return a @ b, F.linear(a, w, c), torch.relu(a.exp() @ w.t()) + c, (b.t() @ a.t()) * 2

    inputs = [torch.randn(*s).to(dtype) for s in ((m, k), (k, n), (n, k), (n,))]
    assert check(codegen, function, *inputs) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(codegen: CppCodegen, dtype: torch.dtype) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Any, ...]:
        scores = torch.softmax(a @ b, -1)
        return scores, torch.baddbmm(c, a, b), scores @ b.mT, a.mT.contiguous() @ a

    inputs = torch.randn(6, 4, 5), torch.randn(6, 5, 3), torch.randn(6, 4, 3)
    assert check(codegen, function, *(x.to(dtype) for x in inputs)) == 0


def test_bias_of_other_sizes(codegen: CppCodegen) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, *biases: torch.Tensor) -> tuple[Any, ...]:
        return tuple(torch.addmm(bias, a, b) for bias in biases)

    sizes = ((4, 5), (5, 6), (4, 6), (6,), (4, 1), (1, 1), (1, 6))
    assert check(codegen, function, *(torch.randn(*s) for s in sizes)) == 0


def test_nan_and_infinity(codegen: CppCodegen) -> None:
    a = torch.tensor([[float("inf"), 1.0], [float("nan"), 0.0], [0.0, -0.0]])
    b = torch.tensor([[1.0, 0.0, -1.0], [2.0, float("-inf"), 3.0]])
    assert check(codegen, lambda a, b: (a @ b,), a, b) == 0


def test_what_stays_in_the_library(codegen: CppCodegen) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        return (a @ b,)

    def scaled(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        return (torch.addmm(a, a, b, beta=0.5),)

    large, small, empty = torch.randn(40, 40), torch.randn(4, 4), torch.randn(4, 0)
    assert check(codegen, product, large, large) == 1
    assert check(codegen, product, torch.randn(64, 9, 9), torch.randn(64, 9, 9).mT) == 1
    assert check(codegen, scaled, small, small) == 1
    assert check(codegen, product, empty, empty.t()) <= 1
    graph = make_fx(product, tracing_mode="fake")(small, small)
    assert len(weft_loop_ir.lower(graph).nodes) == 1
