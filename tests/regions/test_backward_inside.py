"""``backward()`` and ``autograd.grad`` inside a function that is compiled, through its branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

from tests.same_values import assert_same


class State:
    """Two layers, a matrix, and an optimizer of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4).double()
        self.b = nn.Linear(4, 4).double()
        self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.float64) * 0.3)
        self.leaves = [*self.a.parameters(), *self.b.parameters(), self.w]
        self.optimizer = torch.optim.SGD(self.leaves, lr=0.05, momentum=0.9)

    def step(self, loss: Tensor) -> Tensor:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def loss_by_its_size(s: State, x: Tensor) -> Any:
    error = (s.a(x) @ s.w).mean()
    loss = error * error if error.abs() < 0.1 else error.abs() * 0.2 - 0.01
    if loss > 0.05:
        loss = loss * 0.5
    return s.step(loss)


def several_losses(s: State, x: Tensor) -> Any:
    for part in (x, -x):
        h = s.a(part)
        h = h.tanh() if h.sum() > 0 else h * 2 + 1
        (h @ s.w).square().mean().backward()
    s.optimizer.step()


def solver(s: State, x: Tensor) -> Any:
    h, before = torch.zeros_like(x), torch.ones_like(x)
    while (h - before).abs().max() > 1e-3:
        before = h
        h = torch.tanh(h @ s.w * 0.3 + s.a(x))
    return s.step(s.b(h).square().mean())


def branch_in_a_loop(s: State, x: Tensor) -> Any:
    h = s.a(x)
    while h.norm() > 0.5:
        h = h * 0.5 + s.b(h) * 0.01 if h.sum() > 0 else (h * 0.7) @ s.w
    return s.step((s.b(h) @ s.w).square().mean())


def sequence(s: State, x: Tensor) -> Any:
    h, out, rows = torch.zeros(4, dtype=x.dtype), [], torch.zeros(20, 4, dtype=x.dtype)
    for k in range(20):
        h = torch.tanh(s.a(x[k % 3]) + s.b(h))
        out.append(h @ s.w)
        rows[k] = h
    return s.step(torch.stack(out).square().mean() + rows.exp().mean())


def kept_graph(s: State, x: Tensor) -> Any:
    h = s.a(x)
    h = h.tanh() if h.sum() > 0 else h * 3
    h.sum().backward(retain_graph=True)
    return s.step((h * h).mean())


def gradient_of_a_result(s: State, x: Tensor) -> Any:
    middle = x @ s.w
    h = middle
    while h.abs().max() > 0.3:
        h = h * 0.5 + middle * 0.01
    of_middle, of_weight = torch.autograd.grad(h.square().sum(), [middle, s.w], retain_graph=True)
    (of_result,) = torch.autograd.grad([h, h.sum()], [h], [torch.ones_like(h) * 2, None])
    return of_middle + of_result, of_weight


def attack(s: State, x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    h = s.a(x)
    loss = h.logsumexp(-1).sum() if h.max() > 0.5 else (h * s.w[0]).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return x.detach() + 0.1 * gradient.sign()


def weights_of_one_branch(s: State, x: Tensor) -> Any:
    """Which weights have gradients is as in this call, and checked."""
    h = s.a(x)
    if h.sum() > -100:
        h = s.b(h)
    return s.step((h @ s.w).square().mean())


PROGRAMS: tuple[Callable[[State, Tensor], Any], ...] = (
    loss_by_its_size, several_losses, solver, branch_in_a_loop, sequence, kept_graph,
    gradient_of_a_result, attack, weights_of_one_branch,
)  # fmt: skip


def outcome(program: Callable[[State, Tensor], Any]) -> list[Any]:
    """All that can be seen after calls with data that decide in both ways."""
    state = State()
    found: list[Any] = []
    for scale, count in ((1.0, 3), (-2.0, 3), (0.3, 5)):
        x = scale * torch.linspace(-1, 1.5, count * 4, dtype=torch.float64).view(count, 4)
        result = program(state, x)
        found += result if isinstance(result, tuple) else [result]
        for leaf in state.leaves:
            found += [leaf.detach().clone(), None if leaf.grad is None else leaf.grad.clone()]
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph_like_eager(program: Callable[[State, Tensor], Any]) -> None:
    assert_same(outcome(weft.compile(program, fullgraph=True)), outcome(program))


def weights_by_turns(s: State, x: Tensor) -> Any:
    s.optimizer.zero_grad()
    h = s.a(x)
    h = s.b(h) if x.sum() > 0 else h @ s.w
    return s.step(h.square().mean())


def rows_in_some_calls(s: State, x: Tensor) -> Any:
    found = torch.zeros_like(x) * s.w[0]
    if x.sum() > 0:
        found.add_(s.a(x))
    return s.step(found.square().mean())


def with_a_hook(s: State, x: Tensor) -> Any:
    h = s.a(x)
    h = h.tanh() if h.sum() > 0 else h * 2
    h.register_hook(lambda gradient: gradient * 2)
    return s.step(h.square().mean())


def gradient_of_a_gradient(s: State, x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    h = s.a(x)
    h = h.tanh() if h.sum() > 0 else h.sin()
    (gradient,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    return s.step((gradient.norm() - 1).square())


BREAKING = [
    weights_by_turns, rows_in_some_calls, with_a_hook, gradient_of_a_gradient,
]  # fmt: skip


@pytest.mark.parametrize("program", BREAKING, ids=lambda p: p.__name__)
def test_what_stays_eager(program: Callable[[State, Tensor], Any]) -> None:
    assert_same(outcome(weft.compile(program)), outcome(program))


def a_second_time(s: State, x: Tensor) -> Any:
    h = s.a(x)
    h = h.tanh() if h.sum() > 0 else h * h
    loss = h.exp().sum()
    loss.backward()
    loss.backward()


def a_weight_that_was_written(s: State, x: Tensor) -> Any:
    h = s.a(x)
    h = (h @ s.w).tanh() if h.sum() > 0 else h @ s.w * 2
    with torch.no_grad():
        s.w.mul_(2)
    h.exp().sum().backward()


@pytest.mark.parametrize("program", [a_second_time, a_weight_that_was_written])
def test_errors(program: Callable[[State, Tensor], Any]) -> None:
    x = torch.ones(3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        program(State(), x)
    with pytest.raises(RuntimeError) as found:
        weft.compile(program)(State(), x)
    assert str(found.value)[:60] == str(expected.value)[:60]


def test_gradients_outside_as_well() -> None:
    """A result behind an inner gradient keeps its history; the inner gradient has none."""

    def program(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        h = h.sin() if h.sum() > 0 else h.exp()
        (gradient,) = torch.autograd.grad(h.sum(), w, retain_graph=True)
        return (h * gradient[0]).sum(), gradient

    compiled = weft.compile(program, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, 4, dtype=torch.float64)
        mine, theirs = (torch.eye(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        got, wanted = compiled(mine, x), program(theirs, x)
        got[0].backward()
        wanted[0].backward()
        assert_same([*got, mine.grad], [*wanted, theirs.grad])
