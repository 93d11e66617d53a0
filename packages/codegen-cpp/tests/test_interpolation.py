"""Interpolation of every kind with its gradient, beside eager, in static and symbolic sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from comparison import check, with_gradients
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen

LINE, PLANE, SPACE = (2, 3, 9), (2, 3, 7, 5), (1, 2, 4, 5, 3)
up = partial(partial, F.interpolate)
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "nearest 1d": (up(size=23), LINE),
    "nearest 1d, less": (up(size=4), LINE),
    "nearest 2d": (up(scale_factor=(2.0, 1.7)), PLANE),
    "nearest 3d": (up(scale_factor=2), SPACE),
    "exact 1d": (up(size=23, mode="nearest-exact"), LINE),
    "exact 2d": (up(size=(11, 3), mode="nearest-exact"), PLANE),
    "exact 3d": (up(scale_factor=(1.5, 2, 3), mode="nearest-exact"), SPACE),
    "linear": (up(size=20, mode="linear"), LINE),
    "linear, corners": (up(size=20, mode="linear", align_corners=True), LINE),
    "linear to one": (up(size=1, mode="linear", align_corners=True), LINE),
    "bilinear": (up(scale_factor=1.7, mode="bilinear"), PLANE),
    "bilinear, less": (up(size=(3, 4), mode="bilinear"), PLANE),
    "bilinear, corners": (up(scale_factor=3, mode="bilinear", align_corners=True), PLANE),
    "trilinear": (up(scale_factor=2, mode="trilinear"), SPACE),
    "trilinear, fractions": (up(size=(6, 3, 7), mode="trilinear"), SPACE),
    "trilinear, corners": (up(size=(6, 3, 7), mode="trilinear", align_corners=True), SPACE),
    "bicubic": (up(scale_factor=2, mode="bicubic"), PLANE),
    "bicubic, less": (up(size=(3, 4), mode="bicubic"), PLANE),
    "bicubic, fractions": (up(scale_factor=(1.3, 2.6), mode="bicubic"), PLANE),
    "bicubic, corners": (up(size=(12, 9), mode="bicubic", align_corners=True), PLANE),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(codegen: CppCodegen, name: str) -> None:
    function, size = CASES[name]
    x = torch.randn(size, dtype=torch.float64)
    schedule = check(codegen, with_gradients(function), [[x]])
    assert not schedule.fallbacks


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["linear", "bicubic"])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_gradients_of_few_elements(
    codegen: CppCodegen, length: int, mode: str, corners: bool
) -> None:
    """An element may be a tap of all results, and of one several times."""
    plane = mode == "bicubic"
    x = torch.randn((1, 2, length, 5 - length) if plane else (1, 2, length), dtype=torch.float64)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [(n, 6 - n) if plane else n for n in range(1, 6)]
        return tuple(F.interpolate(x, size, mode=mode, align_corners=corners) for size in sizes)

    assert not check(codegen, with_gradients(function), [[x]]).fallbacks


SYMBOLIC: dict[str, Any] = {
    "nearest": up(size=(23, 9)),
    "twice": up(scale_factor=2),
    "bilinear": up(size=(23, 4), mode="bilinear"),
    "bicubic": up(scale_factor=2.0, mode="bicubic"),
    "bicubic, to few": up(size=(2, 3), mode="bicubic"),
    "aligned": lambda x: up(size=(13, 1), mode="bilinear", align_corners=True)(x.detach()),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(codegen: CppCodegen, name: str) -> None:
    samples = [
        [torch.randn(2, 3, h, w, dtype=torch.float64)] for h, w in ((7, 5), (30, 8), (3, 11))
    ]
    schedule = check(codegen, with_gradients(SYMBOLIC[name]), samples, symbolic=True)
    assert not schedule.fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(codegen: CppCodegen, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.interpolate(x, size=(9, 4), mode=mode) for mode in ("nearest", "bilinear", "bicubic")
        )

    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    check(codegen, function, [[torch.randn(PLANE).to(dtype)]], tolerance=tolerance)


@pytest.mark.parametrize("sizes", [(18, 66), (26, 46), (14, 46), (39, 69)])
@pytest.mark.parametrize("last", [False, True])
def test_nearest_rounds_as_eager(codegen: CppCodegen, sizes: tuple[int, int], last: bool) -> None:
    source, target = sizes
    x = torch.arange(float(2 * source), dtype=torch.float64).reshape(1, 2, source, 1)
    if last:
        x = x.repeat(1, 2, 1, 3).to(memory_format=torch.channels_last)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        single = x.float()
        return tuple(
            F.interpolate(v, size=(target, 2), mode=mode)
            for v in (x, single)
            for mode in ("nearest", "nearest-exact")
        )

    check(codegen, function, [[x]])


def test_special_values_spread_as_in_eager(codegen: CppCodegen) -> None:
    x = torch.randn(1, 2, 6, 6)
    x[0, 0, 1, 1], x[0, 1, 3, 4] = torch.nan, torch.inf

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(F.interpolate(x, size=(9, 10), mode=m) for m in ("bilinear", "bicubic"))

    check(codegen, function, [[x]], tolerance=1e-5)
