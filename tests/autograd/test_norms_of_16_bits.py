"""Steps of training whose norms have 16 bits and float32 parameters: one graph, gradients as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import weft
from torch import Tensor, nn
from weft.report import CompileLog, observe

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch, no parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "batch, no averages": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "batch, nothing": lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "batch, fixed": lambda: nn.BatchNorm2d(4).eval(),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "layer": lambda: nn.LayerNorm(6),
    "layer, no bias": lambda: nn.LayerNorm(6, bias=False),
}


def step(layers: nn.Module, x: Tensor, autocast: torch.dtype | None) -> Tensor:
    enabled = autocast is not None
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=enabled):
        y = layers(x)
    loss = (y.float() * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()
    loss.backward()
    return loss.detach()


def assert_same_step(layers: nn.Module, x: Tensor, autocast: torch.dtype | None) -> None:
    other, exact, log = copy.deepcopy(layers), copy.deepcopy(layers).double(), CompileLog()
    step(exact, x.double(), None)
    wanted = step(layers, x, autocast)
    with observe(log):
        got = weft.compile(step)(other, x, autocast)
    assert [graph.eager_reason for graph in log.graphs] == [None]
    torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2)
    for parameters in zip(layers.parameters(), other.parameters(), exact.parameters(), strict=True):
        one, two, best = (parameter.grad for parameter in parameters)
        assert one is not None and two is not None and best is not None
        assert two.dtype == one.dtype
        allowed = 2 * (one - best).abs().max() + 1e-2 * best.abs().max()
        assert (two - best).abs().max() <= allowed
    for one, two in zip(layers.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_autocast", [True, False], ids=["autocast", "mixed"])
@pytest.mark.parametrize("name", LAYERS)
def test_norms(name: str, is_autocast: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    convolution, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    if not is_autocast:
        convolution, x = convolution.to(dtype), x.to(dtype)
    layers = nn.Sequential(convolution, LAYERS[name]())
    assert_same_step(layers, x, dtype if is_autocast else None)


def test_a_normed_weight_of_16_bits() -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)).to(torch.float16)
    assert_same_step(nn.Sequential(layer), torch.randn(4, 6).half(), None)
