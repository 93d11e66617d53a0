"""Whole training steps beside eager: what programs do around backward and the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from weft.report import CompileLog, observe

from tests.test_optimizers import check_same, network

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Any], Any]


def norm_clipped(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, _: Any) -> Any:
    optimizer.zero_grad(set_to_none=True)
    loss = module(x).pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.05)
    optimizer.step()
    return loss.detach(), norm


def values_clipped(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, _: Any) -> Any:
    optimizer.zero_grad(set_to_none=False)
    loss = module(x).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_value_(module.parameters(), 0.01)
    optimizer.step()
    return loss.detach()


def accumulated(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, _: Any) -> Any:
    for part in x.chunk(2):
        (module(part).pow(2).mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return x.sum()


def scaled(
    module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, scaler: torch.amp.GradScaler
) -> Any:
    """The first loss is infinite: that step is left out, and the scale halved."""
    optimizer.zero_grad()
    loss = module(x).pow(2).mean() * (float("inf") if scaler.get_scale() > 4000 else 1.0)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), scaler.get_scale()


def averaged(
    module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, average: AveragedModel
) -> Any:
    optimizer.zero_grad()
    loss = module(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    average.update_parameters(module)
    return loss.detach(), [p.detach() for p in average.parameters()], average.n_averaged


def scaler(_: nn.Module) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=3)


def moving_average(module: nn.Module) -> AveragedModel:
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))


CASES: dict[str, tuple[Step, Callable[[nn.Module], Any]]] = {
    "norm clipped": (norm_clipped, lambda module: None),
    "values clipped": (values_clipped, lambda module: None),
    "accumulated": (accumulated, lambda module: None),
    "scaled": (scaled, scaler),
    "mean of weights": (averaged, AveragedModel),
    "moving average of weights": (averaged, moving_average),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_eagers(name: str) -> None:
    """Results, parameters, optimizer's state and gradients; the third step compiles nothing."""
    train, make = CASES[name]
    plain = network()
    model = copy.deepcopy(plain)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, model))
    beside, other = make(plain), make(model)
    compiled = weft.compile(train)
    for number in range(5):
        x = torch.randn(8, 5)
        want = train(plain, first, x, beside)
        with observe(CompileLog()) as log:
            got = compiled(model, second, x, other)
        torch.testing.assert_close(got, want, equal_nan=True)
        check_same(first, second)
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)
        # A scale that changes is a number read from a tensor: its branch is compiled for either way.
        assert number < 2 or name == "scaled" or not log.graphs
