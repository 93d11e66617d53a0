"""Hooks of tensors and modules in functions that call backward: what they see and change is eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from tests.staged_backend import by_operators

Step = Callable[[nn.Sequential, Tensor, list[Any]], Any]
STEPS: dict[str, tuple[Step, bool]] = {}


def step(*, breaks: bool = False) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS[function.__name__] = function, breaks
        return function

    return register


@step()
def retained(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.retain_grad()
    loss = model[2](F.relu(h)).square().mean()
    loss.backward()
    assert h.grad is not None
    return loss, h.grad.abs().mean()


@step()
def scaled(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: g * 0.5)
    h.register_hook(lambda g: g.clamp(-0.1, 0.1))
    model[2](h.tanh() + h).sum().backward()
    return h.detach()


@step()
def seen_in_order(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    y = model[2](h.relu())
    z = (y + h).tanh()
    for name, tensor in (("h", h), ("z", z), ("y", y)):
        tensor.register_hook(lambda g, name=name: seen.append((name, g.norm())))
        tensor.retain_grad()
    h.register_hook(lambda g: -g)
    (z * y).sum().backward()
    return h.grad, y.grad, z.grad


@step()
def taken_away(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    kept = h.register_hook(lambda g: g * 2)
    h.register_hook(lambda g: g * 3).remove()
    model[2](h).sum().backward()
    kept.remove()
    return h.detach()


@step()
def not_on_the_way(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h, unused = model[0](x), model[2](x)
    unused.register_hook(seen.append)
    unused.retain_grad()
    h.square().sum().backward()
    return unused.detach(), unused.grad


@step()
def watched_twice(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: seen.append(g.sum()))
    h.retain_grad()
    h.sum().backward(retain_graph=True)
    h.square().sum().backward()
    return h.grad


@step(breaks=True)
def changed_again(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: g * 2)
    h.sum().backward(retain_graph=True)
    h.square().sum().backward()
    return h.detach()


@step(breaks=True)
def written(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: (g.mul_(2), None)[1])
    model[2](h).sum().backward()
    return h.detach()


@step(breaks=True)
def asks_for_leaves(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    model[2].weight.grad = None
    h = model[0](x)
    h.register_hook(lambda g: seen.append(model[2].weight.grad is None))
    model[2](h).sum().backward()
    return h.detach()


@step(breaks=True)
def gradients_alone(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: g * 2)
    return torch.autograd.grad(model[2](h).sum(), model[0].weight)


@step(breaks=True)
def returned(model: nn.Sequential, x: Tensor, seen: list[Any]) -> Any:
    h = model[0](x)
    h.register_hook(lambda g: seen.append(g.sum()))
    h.sum().backward(retain_graph=True)
    return h * 2


@pytest.mark.parametrize("name", STEPS)
def test_hooks_are_eagers(name: str) -> None:
    torch.manual_seed(0)
    train, breaks = STEPS[name]
    first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    models = [copy.deepcopy(first) for _ in range(2)]
    seen: list[list[Any]] = [[], []]
    compiled, log = weft.compile(train, backend=by_operators), weft.CompileLog()
    for _ in range(3):
        x, results = torch.randn(3, 4), []
        for run, model, told in zip((train, compiled), models, seen, strict=True):
            with weft.observe(log):
                results.append(run(model, x.clone(), told))
            if name == "returned":
                results[-1].sum().backward()
        torch.testing.assert_close(results[1], results[0])
        assert len(seen[1]) == len(seen[0])
        for mine, theirs in zip(seen[1], seen[0], strict=True):
            assert repr(mine).split("grad_fn")[0] == repr(theirs).split("grad_fn")[0]
        for own, other in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(other.grad, own.grad)
    assert bool(log.graph_breaks) is breaks


class Scored(nn.Module):
    """Attention to places of an image, by gradients of what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4, 3)
        self.kept: dict[str, Tensor] = {}
        self.layers[0].register_forward_hook(lambda m, x, y: self.kept.__setitem__("value", y))
        self.layers[0].register_full_backward_hook(
            lambda m, gi, go: self.kept.__setitem__("gradient", go[0])
        )
        self.layers[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
        self.layers[2].register_full_backward_hook(lambda m, gi, go: (gi[0] / 4,))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(self.layers(x).flatten(1))
        self.zero_grad()
        scores[:, 0].sum().backward()
        weights = self.kept["gradient"].mean((2, 3), keepdim=True)
        return F.relu((weights * self.kept["value"]).sum(1)).detach()


def test_modules_hooks_are_eagers() -> None:
    torch.manual_seed(0)
    model = Scored()
    compiled, log = weft.compile(model, backend=by_operators), weft.CompileLog()
    for size in (8, 8, 9):
        x = torch.randn(2, 3, size, size)
        want = model(x), [p.grad for p in model.parameters()]
        with weft.observe(log):
            got = compiled(x), [p.grad for p in model.parameters()]
        torch.testing.assert_close(got, want)
    assert not log.graph_breaks


def halved(model: nn.Module, seen: list[Any]) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda g: g * 0.5)
        parameter.register_hook(lambda g: g.clamp(-0.1, 0.1))


def told(model: nn.Module, seen: list[Any]) -> None:
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda g, name=name: seen.append((name, g)))


def stepped(model: nn.Module, seen: list[Any]) -> None:
    """Each parameter is updated as soon as it has its gradient."""
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

        def update(_: Tensor, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)


@pytest.mark.parametrize("backend", [by_operators, "eager"])
@pytest.mark.parametrize("register", [halved, told, stepped])
def test_hooks_of_parameters_are_eagers(register: Any, backend: Any) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    models, seen = [copy.deepcopy(first) for _ in range(2)], [list[Any](), list[Any]()]
    for model, own in zip(models, seen, strict=True):
        register(model, own)

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    compiled, log = weft.compile(step, backend=backend), weft.CompileLog()
    for _ in range(3):
        x = torch.randn(3, 4)
        with weft.observe(log):
            torch.testing.assert_close(compiled(models[1], x), step(models[0], x))
        for own, other in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(other, own)
            torch.testing.assert_close(other.grad, own.grad)
            if own.grad is not None and other.grad is not None:
                own.grad.mul_(2)  # which what a hook has kept does not see
                other.grad.mul_(2)
    assert [name for name, _ in seen[1]] == [name for name, _ in seen[0]]
    torch.testing.assert_close([g for _, g in seen[1]], [g for _, g in seen[0]])
    assert not log.graph_breaks


def test_an_error_of_a_hook_is_eagers() -> None:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        h = x * weight

        def refuse(gradient: Tensor) -> None:
            raise ValueError("no gradient here")

        h.register_hook(refuse)
        h.sum().backward()
        return h.detach()

    for called in (run, weft.compile(run, backend=by_operators)):
        with pytest.raises(ValueError, match="no gradient here"):
            called(torch.ones(2), torch.ones(2, requires_grad=True))


def test_hooks_run_outside_where_backward_is() -> None:
    seen: list[Tensor] = []

    def run(x: Tensor, weight: Tensor) -> Tensor:
        h = x * weight
        h.register_hook(lambda g: seen.append(g))
        return h.exp().sum()

    for called in (run, weft.compile(run, backend=by_operators)):
        called(torch.ones(2), torch.ones(2, requires_grad=True)).backward()
    torch.testing.assert_close(seen[1], seen[0])


def test_a_gradient_of_one_row_reaches_a_hook() -> None:
    """Autograd makes zeros for the rows of which none is asked."""
    seen: list[Tensor] = []

    def run(x: Tensor, weight: Tensor) -> Tensor:
        h = x * weight
        h.register_hook(lambda g: seen.append(g))
        first, _ = h.unbind()
        return first.exp()

    for called in (run, weft.compile(run, backend=by_operators)):
        called(torch.ones(2, 2), torch.ones(2, requires_grad=True)).sum().backward()
    torch.testing.assert_close(seen[1], seen[0])
