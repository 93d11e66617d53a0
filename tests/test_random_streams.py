"""Compiling draws no random numbers and puts no generator back: streams go on as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import weft

LINEAR = torch.nn.Linear(4, 4)


def branch(x: torch.Tensor) -> torch.Tensor:
    if torch.rand([]) > 0.5:
        return x + 1
    return x - 1


def layer_inside(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Linear(4, 2)(x)


def loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + torch.randn_like(x)
    return x


def seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.rand(4)


PROGRAMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: torch.relu(x) * 2,
    lambda x: F.dropout(x, 0.5) + LINEAR(x),
    lambda x: torch.rand(4) + torch.randn(4) + x,
    lambda x: x * random.random(),
    lambda x: x + torch.tensor(random.sample(range(9), 4)),
    lambda x: x * float(np.random.rand()),
    lambda x: torch.randperm(5)[:4] + x,
    lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
    branch,
    layer_inside,
    loop,
    seeded,
)


def outcome(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """Results of two calls, and what the generators give after them."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    x = torch.linspace(-1, 1, 8).view(2, 4)
    results = [run(x), run(x + 1)]
    return results, [torch.rand(2).tolist(), random.random(), np.random.rand()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_streams_are_eagers(
    program: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome(program)
    for owner, name in (
        (torch, "set_rng_state"),
        (torch.random, "set_rng_state"),
        (random, "setstate"),
        (np.random, "set_state"),
    ):
        monkeypatch.setattr(owner, name, _refuse)
    found = outcome(weft.compile(program))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]


def _refuse(*arguments: Any) -> None:
    raise AssertionError("a generator was put back")


def test_what_others_draw_meanwhile_is_not_repeated() -> None:
    drawn: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        return graph_module.forward

    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    weft.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert len(drawn) == 1
    after = (torch.rand(1).item(), random.random(), np.random.rand())
    assert not set(after) & set(drawn[0])


def _drawn_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    y = torch.randn(4) + x
    for _ in range(40):
        x = (x * torch.rand_like(x) + F.dropout(x, 0.5) + y).tanh()
    return x + torch.rand(4)


DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": lambda x: (x * torch.bernoulli(x.detach().sigmoid())).tanh(),
    "binomial": lambda x: (
        x * torch.binomial(torch.full((4, 4), 5.0), x.detach().sigmoid())
    ).tanh(),
    "dropout": lambda x: F.dropout(x, 0.5).tanh(),
    "dropout, alpha": lambda x: F.alpha_dropout(x, 0.5, True).tanh(),
    "fractional pooling": lambda x: F.fractional_max_pool2d(x[None, None], 2, 2).tanh(),
    "gumbel": lambda x: F.gumbel_softmax(x).tanh(),
    "in a branch": lambda x: (x * torch.rand(4) if x.sum() > -100 else x * torch.randn(4)).tanh(),
    "in a loop": _drawn_in_a_loop,
    "multinomial": lambda x: x[torch.multinomial(x.detach()[0].exp(), 2)].tanh(),
    "normal": lambda x: (x * torch.normal(x.detach(), 1.0)).tanh(),
    "permutation": lambda x: (x[torch.randperm(4)] * torch.randint(0, 5, (4, 4))).tanh(),
    "poisson": lambda x: (x * torch.poisson(x.detach().exp())).tanh(),
    "randint": lambda x: (x * torch.randint_like(x, 5) + torch.randint_like(x, 2, 4)).tanh(),
    "rrelu": lambda x: F.rrelu(x, training=True) ** 2,
    "uniform": lambda x: (x * torch.empty(4, 4).uniform_() * torch.empty(4).exponential_()).tanh(),
}


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.filterwarnings("ignore:weft. gradients of gradients")
def test_gradients_of_gradients_have_forwards_numbers(name: str) -> None:
    def outcome(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        x = torch.linspace(-1, 2, 16).view(4, 4).requires_grad_()
        (first,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second, torch.rand(3)

    torch.testing.assert_close(outcome(weft.compile(DRAWING[name])), outcome(DRAWING[name]))
