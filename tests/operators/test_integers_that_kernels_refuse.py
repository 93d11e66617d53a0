"""Integers given to operators whose form in Python takes them, and whose kernel does not: eager's error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "linear": lambda x: F.interpolate(x, size=3, mode="linear"),
    "linear by a factor": lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"),
    "bilinear": lambda x: F.interpolate(x[None], size=(2, 3), mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, size=3),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "lp_pool1d": lambda x: F.lp_pool1d(x, 2.0, 2),
    "celu": F.celu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "silu": F.silu,
    "mish": F.mish,
    "huber_loss": lambda x: F.huber_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x + 1),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_like_eager(
    call: Callable[[Tensor], Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_STRICT", raising=False)
    x = torch.tensor([[[1, 0, 2, 3, 1, 7]]]).to(dtype)
    assert _seen(weft.compile(call, dynamic=True), x) == _seen(call, x)


def _seen(call: Callable[[Tensor], Tensor], x: Tensor) -> object:
    try:
        found = call(x)
    except RuntimeError as error:
        return type(error)
    return (
        found.dtype,
        found.shape,
        [round(number, 4) for number in found.double().flatten().tolist()],
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_resized_where_another_argument_varies(
    dtype: torch.dtype, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch computes by others as soon as any size or number varies, not that of the image only."""
    monkeypatch.delenv("WEFT_STRICT", raising=False)

    def function(x: Tensor, number: float) -> tuple[float, str]:
        try:
            F.interpolate(x, size=(5, 3), mode=mode)
            told = ""
        except RuntimeError as error:
            told = type(error).__name__
        return number, told

    x = torch.arange(42).view(1, 3, 2, 7).to(dtype)
    compiled = weft.compile(function)
    for number in (0.5, 0.7, 0.9):
        assert compiled(x, number) == function(x, number)
