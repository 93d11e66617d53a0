"""Operands that a GPU's kernels of attention do not take as they lie: the values are exact all the same.

Eager raises an error for some of them, or gives wrong numbers (torch 2.11): others are compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F
from weft_loop_ir import call_library

pytestmark = pytest.mark.gpu

aten = torch.ops.aten
ERRORS = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 4e-2}

HEADS = 3


def _random(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size, device="cuda").to(dtype)


LAYOUTS: dict[str, Callable[..., torch.Tensor]] = {
    "whole": lambda t, *n: _random(*n, dtype=t),
    "offset by one": lambda t, *n: _random(math.prod(n) + 1, dtype=t)[1:].view(n),
    "rows one longer": lambda t, *n: _random(*n[:-1], n[-1] + 1, dtype=t)[..., :-1],
    "behind the first column": lambda t, *n: _random(*n[:-1], n[-1] + 1, dtype=t)[..., 1:],
    "heads of odd rows": lambda t, *n: (
        _random(n[0], n[2], n[1] * n[3] + 1, dtype=t)[..., :-1]
        .view(n[0], n[2], n[1], n[3])
        .transpose(1, 2)
    ),
    "every other": lambda t, *n: _random(*n[:-1], 2 * n[-1], dtype=t)[..., ::2],
    "columns": lambda t, *n: _random(*n[:-2], n[-1], n[-2], dtype=t).mT,
    "one key for all": lambda t, *n: _random(*n[:-2], 1, n[-1], dtype=t).expand(n),
}

KERNELS: dict[str, Callable[..., Any]] = {
    "flash": lambda q, k, v: call_library(
        aten._scaled_dot_product_flash_attention.default, False, q, k, v
    )[0],
    "efficient": lambda q, k, v: call_library(
        aten._scaled_dot_product_efficient_attention.default, False, q, k, v, None, False
    )[0],
    "cudnn": lambda q, k, v: call_library(
        aten._scaled_dot_product_cudnn_attention.default, False, q, k, v, None, False
    )[0],
}


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
    scores = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask.double()
    return scores.softmax(-1) @ v.double()


def _close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    error = ERRORS[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=error, atol=error)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("efficient", torch.float32),
        ("efficient", torch.float16),
        ("flash", torch.float16),
        ("flash", torch.bfloat16),
        ("cudnn", torch.float16),
    ],
    ids=str,
)
def test_kernels(kernel: str, dtype: torch.dtype, position: int, layout: str) -> None:
    size = (2, HEADS, 40, 16)
    operands = [_random(*size, dtype=dtype) for _ in range(3)]
    operands[position] = LAYOUTS[layout](dtype, *size)
    _close(KERNELS[kernel](*operands), _exact(*operands), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_masks(dtype: torch.dtype, layout: str) -> None:
    size = (2, HEADS, 40, 16)
    operands = [_random(*size, dtype=dtype) for _ in range(3)]
    mask = LAYOUTS[layout](dtype, 2, HEADS, 40, 40)
    operator = aten._scaled_dot_product_efficient_attention.default
    got = call_library(operator, False, *operands, mask, False)[0]
    _close(got, _exact(*operands, mask), dtype)


# ---- whole programs ------------------------------------------------------------------------------------


def _written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def _library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.25)


def _copied(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q.clone(), k.clone(), v.clone(), scale=0.25)


def _computed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q + 1, k * 2, v - 1, scale=0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_written, _library, _copied, _computed])
def test_programs(function: Callable[..., Any], dynamic: bool, dtype: torch.dtype) -> None:
    """One compiled function for all layouts: addresses are not guarded."""
    compiled = weft.compile(function, dynamic=dynamic)
    with torch.no_grad():
        for make in LAYOUTS.values():
            operands = [make(dtype, 1, HEADS, 24, 16) for _ in range(3)]
            want = _exact(*operands) if function is _library else function(*operands)
            _close(compiled(*operands), want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["offset by one", "heads of odd rows", "columns"])
def test_gradients(layout: str, dtype: torch.dtype) -> None:
    operands = [LAYOUTS[layout](dtype, 1, HEADS, 24, 16).requires_grad_() for _ in range(3)]

    def run(function: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
        result = function(*given)
        return [result, *torch.autograd.grad(result.sum(), given)]

    exact = run(_written, [operand.detach().double().requires_grad_() for operand in operands])
    for got, want in zip(run(weft.compile(_written), operands), exact, strict=True):
        _close(got, want, dtype)


def test_deterministic_programs() -> None:
    operands = [_random(1, HEADS, 24, 16, dtype=torch.float32) for _ in range(3)]
    torch.use_deterministic_algorithms(True)
    try:
        _close(weft.compile(_library)(*operands), _library(*operands), torch.float32)
    finally:
        torch.use_deterministic_algorithms(False)
