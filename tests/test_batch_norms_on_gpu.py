"""Statistics of batch norms that a convolution's own kernel makes, in steps of training, beside float64."""

from __future__ import annotations

import copy

import pytest
import torch
import weft
from torch import nn

from tests.attention.interpreted import Interpreted


@pytest.fixture
def codegen(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    made = Interpreted()
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: made)
    return made


def results(model: nn.Module, call: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss, gradients and running statistics of a step."""
    loss = call(x).double().square().mean()
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [*found, *(b for b in model.buffers() if b.is_floating_point())]


def test_a_step_of_training(codegen: Interpreted) -> None:
    """Channels are few and rows many: to read them again would cost as much as to make them."""
    layers = nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
    ours = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    ours[0].weight.data.copy_(ours[0].weight.half())
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    x = (torch.randn(2, 16, 32, 32) + 4).half().to(memory_format=torch.channels_last)
    compiled = weft.compile(ours)
    with torch.autocast("cpu", torch.float16):
        mine, plain = results(ours, compiled, x), results(eager, eager, x)
    assert "def conv_batch_norm" in codegen.programs[0].source
    for got, one, wanted in zip(mine, plain, results(exact, exact, x.double()), strict=True):
        scale = wanted.abs().max()
        error, allowed = ((t.double() - wanted).abs().max() / scale for t in (got, one))
        assert error <= 2 * allowed + 2e-3
