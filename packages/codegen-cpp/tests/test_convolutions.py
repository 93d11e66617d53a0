"""Convolutions: how they lie, which library runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_loop_ir import ExternCall, Schedule

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16]
ONEDNN = CppOptions(matmul_library="onednn")


def rewritten(function: Callable[..., Any], *inputs: torch.Tensor) -> Schedule:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    CppCodegen().rewrite(graph)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


def convolutions(schedule: Schedule) -> list[ExternCall]:
    steps = [step for step in schedule.steps if isinstance(step, ExternCall)]
    return [step for step in steps if "convolution" in str(step.operator)]


def check(
    cache: Path, schedule: Schedule, function: Callable[..., Any], *inputs: torch.Tensor
) -> str:
    """Compare with eager, in values and strides; gives the program's source."""
    program = CppCodegen(replace(ONEDNN, cache_directory=cache)).compile(schedule, {})
    exact = function(*(x.double() for x in inputs))
    for result, eager, best in zip(program(*inputs), function(*inputs), exact, strict=True):
        tolerance = 1e-5 if eager.dtype == torch.float32 else 3e-2
        torch.testing.assert_close(result.double(), best, rtol=tolerance, atol=50 * tolerance)
        assert result.dtype == eager.dtype
        assert result.stride() == eager.stride()
    return program.source


def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
    """A padded and a strided convolution with what commonly stands between them."""
    y = F.group_norm(F.conv2d(x, w, b, padding=1), 2).relu()
    z = F.conv2d(F.max_pool2d(y, 2), v, stride=2) + 1
    return torch.cat([z, z.sigmoid()], 1), y.mean((2, 3)), z.flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_lie_channels_last(cache: Path, dtype: torch.dtype, channels_last: bool) -> None:
    x = torch.randn(2, 3, 20, 20).to(dtype)
    if channels_last:
        if torch.__version__.startswith("2.14"):
            pytest.skip("fakes of group_norm are contiguous; capture corrects them")
        x = x.contiguous(memory_format=torch.channels_last)
    weights = [torch.randn(*size).to(dtype) for size in ((8, 3, 3, 3), (8,), (6, 8, 3, 3))]
    schedule = rewritten(network, x, *weights)
    for call in convolutions(schedule):
        assert all(view.stride[1] == 1 for view in call.arguments[:2])
        assert schedule.buffers[str(call.outputs[0])].layout.stride[1] == 1
    check(cache, schedule, network, x, *weights)


def test_large_weights_of_small_images_stay(cache: Path) -> None:
    """One of the two weights is worth turning."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        return (F.conv2d(F.conv2d(x, w, stride=4).relu(), v, padding=1),)

    inputs = torch.randn(1, 4, 20, 20), torch.randn(32, 4, 3, 3), torch.randn(48, 32, 3, 3)
    schedule = rewritten(function, *inputs)
    assert [call.arguments[1].stride[1] for call in convolutions(schedule)] == [1, 9]
    check(cache, schedule, function, *inputs)


def test_transposed_and_grouped_convolutions(cache: Path) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        return (F.conv_transpose2d(F.conv2d(x, w, padding=1, groups=6).exp(), v, stride=2),)

    inputs = torch.randn(2, 6, 9, 9), torch.randn(6, 1, 3, 3) / 4, torch.randn(6, 4, 2, 2)
    check(cache, rewritten(function, *inputs), function, *inputs)


def test_gradients(cache: Path) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[Any, ...]:
        gradient = aten.threshold_backward(g, F.conv2d(x, w, padding=1), 0)
        numbers: tuple[Any, ...] = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3)
        return aten.convolution_backward(gradient, x, w, *numbers)

    inputs = torch.randn(2, 4, 9, 9), torch.randn(8, 4, 3, 3), torch.randn(2, 8, 9, 9)
    check(cache, rewritten(function, *inputs), function, *inputs)


@pytest.mark.parametrize("size", [1, 3])
def test_large_convolutions_run_in_onednn(cache: Path, size: int) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        return (F.conv2d(x, w, b, dilation=2),)

    inputs = torch.randn(1, 32, 24, 24), torch.randn(64, 32, size, size), torch.randn(64)
    source = check(cache, rewritten(function, *inputs), function, *inputs)
    assert "onednn_convolution(" in source


def test_small_and_wide_convolutions_stay_with_torch(cache: Path) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        return (F.conv2d(x, w),)

    for inputs in (
        (torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)),
        (torch.randn(1, 32, 24, 24).double(), torch.randn(64, 32, 3, 3).double()),
        (torch.randn(0, 32, 24, 24), torch.randn(64, 32, 3, 3)),
    ):
        source = check(cache, rewritten(function, *inputs), function, *inputs)
        assert "onednn_convolution(" not in source
