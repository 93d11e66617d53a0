"""Hooks of tensors that differentiated results don't depend on, or that are written to, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import nn

Log = list[tuple[str, bool]]


class Heads(nn.Module):
    """Two results, each of parameters of its own behind those of both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x).tanh()
        return self.first(y), self.second(y)


def backward(results: tuple[torch.Tensor, ...], which: tuple[int, ...]) -> None:
    torch.stack([results[k].sum() for k in which]).sum().backward()


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_hooks_of_parameters(which: tuple[int, ...], dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Heads()
    log: Log = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda g, name=name: log.append((name, g is None)))
    compiled = weft.compile(model, dynamic=dynamic)
    for size in (2, 3, 3):
        seen = []
        for call in (model, compiled):
            log.clear()
            model.zero_grad()
            backward(call(torch.ones(size, 3)), which)
            seen.append((sorted(log), [p.grad is None for p in model.parameters()]))
        assert seen[1] == seen[0]
    hooks = [next(iter(p._backward_hooks.values())) for p in model.parameters()]  # type: ignore[union-attr]
    assert all(hook.__name__ == "<lambda>" for hook in hooks)  # as they were registered


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("steps", [False, True])
def test_hooks_of_accumulated_gradients(which: tuple[int, ...], steps: bool) -> None:
    """Those of each parameter that gets a gradient, by whichever way; ``steps``: the first lets go of it."""
    torch.manual_seed(0)
    model = Heads()
    log: list[tuple[str, bool]] = []

    def step(parameter: torch.Tensor) -> None:
        if steps:
            parameter.grad = None

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(step)
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: log.append((name, p.grad is None))  # type: ignore[misc]
        )
    compiled = weft.compile(model)
    seen = []
    for call in (model, compiled):
        log.clear()
        model.zero_grad()
        for way in (which, (1,)):
            results = call(torch.ones(2, 3))
            backward((*results, model.second.weight.exp()), (*way, 2))
        seen.append((sorted(log), [p.grad is None for p in model.parameters()]))
    assert seen[1] == seen[0]
    hooks = [[*p._post_accumulate_grad_hooks.values()] for p in model.parameters()]  # type: ignore[attr-defined]
    assert all(first is step for first, _ in hooks)  # as they were registered


def test_hook_that_is_removed_and_another_that_is_added() -> None:
    model = Heads()
    compiled = weft.compile(model)
    log: Log = []
    weight = model.second.weight
    handle = weight.register_hook(lambda g: log.append(("removed", g is None)))
    backward(compiled(torch.ones(2, 3)), (0,))
    handle.remove()
    weight.register_hook(lambda g: log.append(("added", g is None)))
    for which in ((0,), (1,)):
        backward(compiled(torch.ones(2, 3)), which)
    assert log == [("added", False)]


def test_hook_of_several_tensors() -> None:
    model = Heads()
    log: Log = []
    torch.autograd.graph.register_multi_grad_hook(
        [model.first.weight, model.body.weight], lambda gs: log.append(("all", gs[1] is None))
    )
    backward(weft.compile(model)(torch.ones(2, 3)), (0,))
    assert log == [("all", False)]


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "none": lambda y: None,
    "zero_": torch.Tensor.zero_,
    "fill_": lambda y: y.fill_(1.5),
    "copy_": lambda y: y.copy_(torch.ones(3)),
    "item": lambda y: y.__setitem__(..., 2.0),
    "mul_": lambda y: y.mul_(3),
    "part": lambda y: y[:1].zero_(),
}


CASES = [(change, which) for change in CHANGES for which in [(1,), (2,), (0, 1, 2)]]
"""A write runs in eager, whose own rules pass on that there is no gradient where only the first is wanted."""


@pytest.mark.parametrize(("change", "which"), [("none", (0,)), *CASES])
def test_hooks_of_intermediates(change: str, which: tuple[int, ...]) -> None:
    def inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.roll(1, 0)
        y.register_hook(lambda g: log.append(g.clone()))
        CHANGES[change](y)
        return x.cos(), y * 2, y.sin() * x

    def given(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        CHANGES[change](y)
        return x.cos(), y * 2, y.sin() * x

    def outside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.roll(1, 0)
        y.register_hook(lambda g: log.append(g.clone()))
        return current(y, x)

    log: list[torch.Tensor] = []
    for function, compiled in ((inside, weft.compile(inside)), (outside, outside)):
        seen = []
        for number, call in enumerate((function, compiled)):
            current = weft.compile(given) if number else given
            log.clear()
            x = torch.tensor([0.5, 0.25, -1.0], requires_grad=True)
            backward(call(x), which)
            seen.append(([*log], x.grad))
        torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("registered", ["before the call", "after it"])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_hooks_of_arguments_that_are_computed(registered: str, which: tuple[int, ...]) -> None:
    def heads(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first * 3, second.sin()

    seen = []
    for call in (heads, weft.compile(heads)):
        log: list[tuple[int, torch.Tensor]] = []
        leaves = [torch.full((3,), float(k + 1), requires_grad=True) for k in range(2)]
        given = [leaf * 2 for leaf in leaves]

        def register(given: list[torch.Tensor] = given, log: Any = log) -> None:
            for k, tensor in enumerate(given):
                tensor.register_hook(lambda g, k=k: log.append((k, g)))

        if registered == "before the call":
            register()
        results = call(*given)
        if registered == "after it":
            register()
        backward(results, which)
        seen.append((log, [leaf.grad for leaf in leaves]))
    torch.testing.assert_close(seen[1], seen[0])
