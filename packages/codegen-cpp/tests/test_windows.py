"""Pooling of every kind with its gradient, beside eager, in static and symbolic sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from comparison import check, with_gradients
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen

LINE, PLANE, SPACE = (2, 3, 19), (2, 3, 13, 11), (2, 2, 7, 9, 8)


def indexed(function: Any, **keywords: Any) -> Any:
    return partial(function, return_indices=True, **keywords)


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "max 1d": (indexed(F.max_pool1d, kernel_size=3, stride=2, padding=1), LINE),
    "max 1d, dilated": (indexed(F.max_pool1d, kernel_size=3, dilation=3, padding=1), LINE),
    "max 1d, long": (indexed(F.max_pool1d, kernel_size=60, stride=1, padding=30), (2, 3, 70)),
    "max 2d, dilated": (
        indexed(F.max_pool2d, kernel_size=(2, 3), stride=2, padding=1, dilation=(3, 2)),
        PLANE,
    ),
    "max 2d, ceil": (indexed(F.max_pool2d, kernel_size=3, stride=2, ceil_mode=True), PLANE),
    "max 2d, large": (indexed(F.max_pool2d, kernel_size=8, stride=3, padding=3), PLANE),
    "max 2d, wide": (
        indexed(F.max_pool2d, kernel_size=(4, 16), stride=(1, 3), padding=(2, 8), ceil_mode=True),
        PLANE,
    ),
    "max 3d": (indexed(F.max_pool3d, kernel_size=2), SPACE),
    "max 3d, overlapping": (
        indexed(F.max_pool3d, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        SPACE,
    ),
    "max 3d, dilated, large": (
        indexed(F.max_pool3d, kernel_size=4, stride=1, padding=2, dilation=(1, 2, 2)),
        SPACE,
    ),
    "avg 1d": (partial(F.avg_pool1d, kernel_size=3, stride=2, padding=1), LINE),
    "avg 2d, large": (partial(F.avg_pool2d, kernel_size=9, stride=2, padding=4), PLANE),
    "avg 2d, uncounted": (
        partial(
            F.avg_pool2d,
            kernel_size=8,
            stride=3,
            padding=3,
            ceil_mode=True,
            count_include_pad=False,
        ),
        PLANE,
    ),
    "avg 3d": (partial(F.avg_pool3d, kernel_size=2), SPACE),
    "avg 3d, padded": (
        partial(F.avg_pool3d, kernel_size=3, stride=2, padding=1, count_include_pad=False),
        SPACE,
    ),
    "avg 3d, ceil": (partial(F.avg_pool3d, kernel_size=(2, 3, 4), ceil_mode=True), SPACE),
    "avg 3d, divisor": (partial(F.avg_pool3d, kernel_size=4, stride=1, divisor_override=7), SPACE),
    "adaptive avg 1d": (partial(F.adaptive_avg_pool1d, output_size=5), LINE),
    "adaptive avg 2d": (partial(F.adaptive_avg_pool2d, output_size=(4, 5)), PLANE),
    "adaptive avg 2d, enlarging": (partial(F.adaptive_avg_pool2d, output_size=(17, 11)), PLANE),
    "adaptive avg 3d": (partial(F.adaptive_avg_pool3d, output_size=(3, 4, 5)), SPACE),
    "adaptive avg 3d to one": (partial(F.adaptive_avg_pool3d, output_size=1), SPACE),
    "adaptive max 1d": (indexed(F.adaptive_max_pool1d, output_size=4), LINE),
    "adaptive max 2d": (indexed(F.adaptive_max_pool2d, output_size=(5, 4)), PLANE),
    "adaptive max 2d to one": (indexed(F.adaptive_max_pool2d, output_size=1), PLANE),
    "adaptive max 3d": (indexed(F.adaptive_max_pool3d, output_size=(3, 9, 2)), SPACE),
}


SYMBOLIC = [name for name in CASES if "1d" in name or "3d" in name or "large" in name]


@pytest.mark.parametrize(
    ("name", "symbolic"), [*((n, False) for n in CASES), *((n, True) for n in SYMBOLIC)]
)
def test_values_and_gradients(codegen: CppCodegen, name: str, symbolic: bool) -> None:
    function, size = CASES[name]
    larger = (3, *(n + 2 * k for k, n in enumerate(size[1:])))
    samples = [[torch.randn(s, dtype=torch.float64)] for s in (size, larger)]
    schedule = check(codegen, with_gradients(function), samples, symbolic)
    assert not schedule.fallbacks


@pytest.mark.parametrize("name", [name for name in CASES if "max" in name])
def test_ties_nan_and_infinity(codegen: CppCodegen, name: str) -> None:
    """Eager takes the first of equals, the last NaN, and of a window of -inf its first element."""
    function, size = CASES[name]
    x = torch.randint(-1, 2, size).float()
    x[..., :4] = -torch.inf
    x.view(-1)[::13] = torch.nan
    check(codegen, lambda x: function(x), [[x]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["max 3d", "avg 2d, large", "adaptive max 2d"])
def test_low_precision(codegen: CppCodegen, name: str, dtype: torch.dtype) -> None:
    function, size = CASES[name]

    def results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = function(x)
        return given if isinstance(given, tuple) else (given,)

    check(codegen, results, [[torch.randn(size).to(dtype)]], tolerance=2e-2)


def test_a_tensor_without_a_batch_or_channels_last(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.avg_pool3d(x, 2), F.adaptive_max_pool3d(x, 3), F.max_pool3d(x, 3, 2, 1)

    check(codegen, function, [[torch.randn(2, 7, 9, 8)]])
    image = torch.randn(2, 4, 6, 9, 8).to(memory_format=torch.channels_last_3d)
    check(codegen, function, [[image]])
