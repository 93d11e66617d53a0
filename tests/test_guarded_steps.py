"""Steps of training that data may end: losses and gradients that are not finite, policies that have moved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from weft.report import CompileLog, observe

from .staged_backend import by_operators
from .test_optimizers import check_same

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Any]


def guarded(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
    """Statistics are written and numbers drawn before the first check, gradients before the second."""
    loss = module(x.clamp(max=5.0)).pow(2).mean() * x[0, 0].square()
    if torch.isnan(loss):
        return None
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()
        return None, norm
    for name, parameter in module.named_parameters():
        if not torch.isfinite(parameter.grad).all():
            raise FloatingPointError(name)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach(), norm


def moved(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
    """A loop of steps, each of which may be the last one."""
    first = None
    for _ in range(4):
        outputs = torch.distributions.Categorical(logits=module(x)).logits
        first = outputs.detach() if first is None else first
        distance = (outputs - first).abs().mean().item()
        if distance > x[0, 0]:
            break
        optimizer.zero_grad()
        outputs.pow(2).mean().backward()
        optimizer.step()
    return distance


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(4, width, False), nn.BatchNorm1d(width), nn.Dropout(0.2))
    return nn.Sequential(*layers, nn.Linear(width, 3))


def batches() -> list[Tensor]:
    torch.manual_seed(1)
    found = [torch.randn(8, 4) for _ in range(7)]
    for x in found:
        x[0, 0] = 5.0
    found[3][0, 0] = torch.nan
    found[4][0, 0] = 1e25  # whose square is infinite
    return found


def outcome(step: Step, *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except ValueError as error:  # of a distribution that is not a number
        return str(error)


@pytest.mark.parametrize(
    ("step", "backend", "width", "graphs", "kinds"),
    [
        (guarded, "weft", 8, 2, set()),
        (guarded, by_operators, 8, 2, set()),
        (guarded, by_operators, 2048, 4, {"branch on a tensor's value"}),
        (moved, by_operators, 8, 3, {"check of data behind a write", "next()"}),
    ],
)
def test_steps_are_eagers_whatever_the_data_is(
    step: Step, backend: Any, width: int, graphs: int, kinds: set[str]
) -> None:
    plain = network(width)
    module = copy.deepcopy(plain)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, module))
    compiled = weft.compile(step, backend=backend)
    for number, x in enumerate(batches()):
        torch.manual_seed(number)
        want = outcome(step, plain, first, x)
        state = torch.get_rng_state()
        torch.manual_seed(number)
        with observe(CompileLog()) as log:
            got = outcome(compiled, module, second, x)
        if number < 2:
            assert sum(report.graph is not None for report in log.conversions) <= graphs
            assert {found.kind for found in log.graph_breaks} <= kinds
        assert isinstance(got, str) is isinstance(want, str)
        if isinstance(want, tuple) and want[0] is not None:
            torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)
        assert torch.equal(torch.get_rng_state(), state)
        check_same(first, second)
        for mine, theirs in zip(
            (*module.parameters(), *module.buffers()),
            (*plain.parameters(), *plain.buffers()),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
            torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)
