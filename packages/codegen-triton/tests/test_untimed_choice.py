"""Which products are kernels of ours where nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, schedule_of
from matmul_cases import channels_last, randn
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import all_forms
from weft_codegen_triton.matmuls.untimed_choice import choose_untimed

T = torch.Tensor


def half(*size: int) -> T:
    return torch.empty(size, dtype=torch.float16)


def image(*size: int) -> T:
    return half(*size).to(memory_format=torch.channels_last)


def _statistics(x: T, w: T) -> tuple[T, ...]:
    y = F.conv2d(x, w)
    return y, *torch.var_mean(y.float(), (0, 2, 3))


CASES: dict[str, tuple[Callable[..., Any], tuple[T, ...], bool]] = {
    "1 x 1 with what follows": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        (image(16, 64, 56, 56), image(64, 64, 1, 1), half(64)),
        True,
    ),
    "1 x 1 alone": (
        lambda x, w: F.conv2d(x, w),
        (image(16, 64, 56, 56), image(64, 64, 1, 1)),
        False,
    ),
    "1 x 1 of few pixels": (
        lambda x, w: F.relu(F.conv2d(x, w)),
        (image(1, 64, 56, 56), image(64, 64, 1, 1)),
        False,
    ),
    "1 x 1 of many channels": (
        lambda x, w: F.relu(F.conv2d(x, w)),
        (image(16, 2048, 28, 28), image(256, 2048, 1, 1)),
        False,
    ),
    "1 x 1 in float32": (
        lambda x, w: F.relu(F.conv2d(x, w)),
        (image(16, 64, 56, 56).float(), image(64, 64, 1, 1).float()),
        False,
    ),
    "3 x 3": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        (image(16, 64, 56, 56), image(64, 64, 3, 3)),
        False,
    ),
    "3 x 3 of each channel": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=64)),
        (image(16, 64, 56, 56), half(64, 1, 3, 3)),
        True,
    ),
    "7 x 7 of each channel": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=3, groups=64)),
        (image(16, 64, 56, 56), half(64, 1, 7, 7)),
        False,
    ),
    "1 row by 8 bits": (
        lambda x, w: F.linear(x, w.half()),
        (half(1, 512), torch.empty(512, 512, dtype=torch.int8)),
        True,
    ),
    "1 row by 8 bits, turned": (
        lambda x, w: F.linear(x, w.t().half().contiguous()),
        (half(1, 512), torch.empty(512, 512, dtype=torch.int8)),
        False,
    ),
    "4 rows": (lambda x, w: (x @ w).relu(), (half(4, 512), half(512, 512)), True),
    "4 rows and a weight of 8 bits": (
        lambda x, w: x @ w.to(x.dtype),
        (half(4, 512), torch.empty(512, 512, dtype=torch.int8)),
        True,
    ),
    "4 rows, few columns": (lambda x, w: (x @ w).relu(), (half(4, 512), half(512, 8)), True),
    "4 rows, few columns, long sums": (
        lambda x, w: (x @ w).relu(),
        (half(4, 1 << 14), half(1 << 14, 8)),
        False,
    ),
    "4 rows, many columns, long sums": (
        lambda x, w: (x @ w).relu(),
        (half(4, 1 << 14), half(1 << 14, 4096)),
        True,
    ),
    "1 row by few columns, long sums": (
        lambda x, w: x @ w.t(),
        (half(1, 1 << 20), half(2, 1 << 20)),
        False,
    ),
    "4 rows alone": (lambda x, w: x @ w, (half(4, 512), half(512, 512)), False),
    "4 rows in float32": (
        lambda x, w: (x @ w).relu(),
        (half(4, 512).float(), half(512, 512).float()),
        False,
    ),
    "1 row by columns": (lambda x, w: x @ w.t(), (half(1, 512), half(300, 512)), True),
    "1 row by columns, and a vector": (lambda w, x: w @ x, (half(300, 70), half(70)), True),
    "1 row by rows": (lambda x, w: x @ w, (half(1, 512), half(512, 512)), False),
    "1 row in float32": (
        lambda x, w: x @ w.t(),
        (half(1, 512).float(), half(512, 512).float()),
        False,
    ),
    "1 x 1 and a batch's statistics": (
        _statistics,
        (image(16, 32, 56, 56), image(192, 32, 1, 1)),
        True,
    ),
    "1 x 1 of many channels and a batch's statistics": (
        _statistics,
        (image(64, 256, 14, 14), image(1024, 256, 1, 1)),
        False,
    ),
    "a sum of many rows": (lambda x, w: (x @ w).sum(0), (half(1 << 16, 64), half(64, 128)), True),
    "mixed tokens that begin anywhere": (
        lambda x, w: F.linear(x.transpose(1, 2), w).relu(),
        (half(64, 196, 384), half(196, 196)),
        True,
    ),
    "mixed tokens, aligned": (
        lambda x, w: F.linear(x.transpose(1, 2), w).relu(),
        (half(64, 200, 384), half(200, 200)),
        False,
    ),
    "a few mixed tokens that begin anywhere": (
        lambda x, w: F.linear(x.transpose(1, 2), w).relu(),
        (half(2, 196, 384), half(196, 196)),
        False,
    ),
    "many rows": (lambda x, w: (x @ w).relu(), (half(512, 512), half(512, 512)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_kinds(codegen: TritonCodegen, name: str) -> None:
    function, inputs, expected = CASES[name]
    (forms,) = all_forms(schedule_of(function, inputs, codegen), REFERENCE)
    assert (choose_untimed(forms) is not None) is expected


def test_programs_have_them(codegen: TritonCodegen) -> None:
    def function(x: T, w: T, y: T) -> tuple[T, T]:
        return (x @ w).relu(), y @ w

    inputs = randn(4, 64).half(), randn(64, 48).half(), channels_last(1, 1, 20, 64)[0, 0].half()
    program = codegen.compile(schedule_of(function, inputs, codegen), {})
    assert (program.kernel_count, program.extern_count) == (1, 1)
    assert_equals_eager(program(*inputs), function, inputs)
