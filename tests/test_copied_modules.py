"""``copy.deepcopy`` of modules inside compiled functions, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from tests.same_values import assert_same
from tests.staged_backend import by_operators


class Tied(nn.Module):
    """Two layers with one weight, a frozen one, buffers, plain attributes and a dict of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("shift", torch.full((4,), 0.5))
        self.scales = {"a": 2.0, "b": [1, 2]}
        self.heads = nn.ModuleDict({"one": nn.Linear(4, 2)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(x).tanh())) * self.frozen + self.shift
        found: Tensor = self.heads["one"](x) * self.scales["a"]
        return found


Program = Callable[[nn.Module, Tensor], Any]


def beside_the_original(module: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(module)
    return other(x) - module(x * 2)


def trained_inside(module: nn.Module, x: Tensor) -> Any:
    """A few steps of a copy, towards which the original moves (Reptile)."""
    fast = copy.deepcopy(module)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(fast(x), x[:, :2]).backward()
        optimizer.step()
    with torch.no_grad():
        for slow, other in zip(module.parameters(), fast.parameters(), strict=True):
            slow.add_(other - slow, alpha=0.5)
    return fast(x).detach()


def returned(module: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    other.scales["a"] = 3.0  # type: ignore[index, operator]
    return other.eval()


def kept_average(module: nn.Module, x: Tensor) -> Any:
    average = copy.deepcopy(module).requires_grad_(False)
    return module(x).sum() + average(x).sum(), [p.requires_grad for p in average.parameters()]


def outcome(program: Program) -> list[Any]:
    torch.manual_seed(0)
    module = Tied().double()
    found: list[Any] = []
    for call in range(2):
        result = program(module, torch.linspace(-1, 1 + call, 12, dtype=torch.float64).view(3, 4))
        if isinstance(result, nn.Module):
            found += [result.training, result.scales, module.scales, result.first.bias.grad]
            found += [p.requires_grad for p in result.parameters()]
            found += [tensor.clone() for tensor in result.state_dict().values()]
            found.append(result.second.weight is result.first.weight)
            result = result(torch.ones(3, 4, dtype=torch.float64))
        results = result if isinstance(result, tuple) else (result,)
        if results[0].requires_grad:
            results[0].sum().backward()
        found += [results[0].detach(), *results[1:]]
        found += [tensor.clone() for tensor in module.state_dict().values()]
        found += [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    return found


@pytest.mark.parametrize("program", [beside_the_original, trained_inside], ids=lambda p: p.__name__)
def test_one_graph(program: Program) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled), outcome(program))


@pytest.mark.parametrize("program", [returned, kept_average], ids=lambda p: p.__name__)
def test_what_may_break(program: Program) -> None:
    assert_same(outcome(weft.compile(program, backend=by_operators)), outcome(program))


@pytest.mark.filterwarnings("ignore:.*The graph runs eagerly")
def test_buffers_that_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do their copies, in eager."""

    monkeypatch.delenv("WEFT_STRICT", raising=False)

    class Shared(nn.Module):
        def __init__(self, whole: Tensor) -> None:
            super().__init__()
            self.register_buffer("a", whole)
            self.register_buffer("b", whole.view(2, 2))

    def program(module: Any) -> Any:
        other = copy.deepcopy(module)
        other.a.mul_(3)
        return other.b + 1

    found = weft.compile(program)(Shared(torch.ones(4)))
    assert torch.equal(found, program(Shared(torch.ones(4))))


def test_first_optimizer_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes its class: no break in a process that has made none before."""
    step: Any = torch.optim.SGD.step
    if getattr(step, "hooked", False):
        monkeypatch.setattr(torch.optim.SGD, "step", step.__wrapped__)
    compiled = weft.compile(trained_inside, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled), outcome(trained_inside))
