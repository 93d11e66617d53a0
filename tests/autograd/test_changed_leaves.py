"""Leaves that a program gives other memory (``p.data = value``), or lets require no gradient for a while."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from tests.staged_backend import by_operators

Step = Callable[[nn.Sequential, Tensor], Any]
STEPS: dict[str, tuple[Step, int]] = {}


def step(breaks: int = 0) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS[function.__name__] = function, breaks
        return function

    return register


@step()
def decayed(model: nn.Sequential, x: Tensor) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.9
        return model(x)


@step()
def averaged(model: nn.Sequential, x: Tensor) -> Any:
    model.zero_grad()
    loss = model[0](x).square().mean()
    loss.backward()
    for mine, other in zip(model[2].parameters(), model[0].parameters(), strict=True):
        mine.data = 0.9 * mine.data + 0.1 * other.data
    return loss.detach()


@step()
def tied(model: nn.Sequential, x: Tensor) -> Any:
    model[2].weight.data = model[0].weight.data
    with torch.no_grad():
        model[0].weight.add_(x.mean())
        return model[2](x)


@step()
def swapped(model: nn.Sequential, x: Tensor) -> Any:
    first, last = model[0].weight, model[2].weight
    first.data, last.data = last.data, first.data
    return x.exp()


@step()
def old_memory_is_seen(model: nn.Sequential, x: Tensor) -> Any:
    old = model[0].weight.data
    model[0].weight.data = old + x.mean()
    old.mul_(2)
    return old.sum(), model[0].weight.data.sum()


@step(breaks=1)
def gradients_follow(model: nn.Sequential, x: Tensor) -> Any:
    model[0].weight.data = model[0].weight.data * 0.5
    loss = model(x).sum()
    model.zero_grad()
    return loss, torch.autograd.grad(loss, model[0].weight)[0]


@step()
def new_memory_is_written(model: nn.Sequential, x: Tensor) -> Any:
    model[0].weight.data = model[0].weight.data * 0.5
    with torch.no_grad():
        model[0].weight.add_(1).mul_(2)
    return x * 2, model[0].weight.detach()


@step(breaks=1)
def new_memory_is_written_by_its_other_name(model: nn.Sequential, x: Tensor) -> Any:
    fresh = model[0].weight.data * 0.5
    model[0].weight.data = fresh
    fresh.mul_(2)
    return x * 2


@step(breaks=1)
def memory_of_a_buffer_is_written(model: nn.Sequential, x: Tensor) -> Any:
    model[0].weight.data = model[2].weight.data
    with torch.no_grad():
        model[0].weight.add_(1)
    return x * 2


@step()
def sharpness_aware(model: nn.Sequential, x: Tensor) -> Any:
    """Gradients where the loss is worse nearby move the weights from where they were."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        old = [p.data.clone() for p in model.parameters()]
        for parameter in model.parameters():
            parameter.add_(parameter.grad * (0.05 / (norm + 1e-12)))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for parameter, before in zip(model.parameters(), old, strict=True):
        parameter.data = before
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), [p.detach() for p in model.parameters()]


@step(breaks=1)
def another_shape(model: nn.Sequential, x: Tensor) -> Any:
    model[0].bias.data = torch.zeros(2, 2)
    model[0].bias.data = x[0].exp()
    return x * 2


@step()
def frozen(model: nn.Sequential, x: Tensor) -> Any:
    model[0].requires_grad_(False)
    result = model(x)
    model.zero_grad()
    result.square().mean().backward()
    return result.detach(), [p.requires_grad for p in model.parameters()]


@step()
def frozen_for_a_while(model: nn.Sequential, x: Tensor) -> Any:
    for parameter in model.parameters():
        parameter.requires_grad = False
    moved = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(moved).sum(), moved)
    for parameter in model.parameters():
        parameter.requires_grad = True
    model.zero_grad()
    loss = model(x + gradient).square().mean()
    loss.backward()
    return gradient, loss.detach()


@step()
def attacked(model: nn.Sequential, x: Tensor) -> Any:
    shift = torch.zeros_like(x)
    shift.requires_grad = True
    for _ in range(3):
        F.cross_entropy(model(x + shift), torch.arange(len(x))).backward()
        assert shift.grad is not None
        shift.data = (shift + 0.1 * shift.grad.detach().sign()).clamp(-0.2, 0.2)
        shift.grad.zero_()
    return shift.detach()


@step()
def inferred(model: nn.Sequential, x: Tensor) -> Any:
    z = torch.zeros(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x + z).square().sum().backward()
        optimizer.step()
    return z.detach()


def state(model: nn.Module) -> Iterator[Any]:
    for parameter in model.parameters():
        yield from (parameter.detach().clone(), parameter.grad, parameter.requires_grad)
        yield from (type(parameter), parameter._version, parameter.is_leaf)


@pytest.mark.parametrize("name", STEPS)
def test_leaves_are_eagers(name: str) -> None:
    torch.manual_seed(0)
    train, breaks = STEPS[name]
    first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    plain, model = copy.deepcopy(first), copy.deepcopy(first)
    kept = [[p.data for p in m.parameters()] for m in (plain, model)]
    compiled, log = weft.compile(train, backend=by_operators), weft.CompileLog()
    for _ in range(3):
        x = torch.randn(4, 4)
        with weft.observe(log):
            got = compiled(model, x)
        torch.testing.assert_close(got, train(plain, x))
        for mine, theirs in zip(state(model), state(plain), strict=True):
            if isinstance(theirs, Tensor):
                torch.testing.assert_close(mine, theirs)
            else:
                assert mine == theirs
        torch.testing.assert_close(kept[1], kept[0])
    assert bool(log.graph_breaks) is bool(breaks)


def test_memory_is_shared_with_what_was_given() -> None:
    def give(parameter: nn.Parameter, value: Tensor) -> Tensor:
        parameter.data = value
        return value + 1

    compiled = weft.compile(give, backend=by_operators, fullgraph=True)
    parameter = nn.Parameter(torch.zeros(3))
    for _ in range(2):
        value = torch.randn(3)
        assert torch.equal(compiled(parameter, value), value + 1)
        assert parameter.data_ptr() == value.data_ptr()
        assert parameter.requires_grad
