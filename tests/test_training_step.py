"""A whole training step in one function: one graph, losses as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from .staged_backend import by_operators

STEPS = 20
VOCABULARY, WIDTH, LENGTH = 32, 16, 12


class Language(nn.Module):
    """A small transformer over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        logits: Tensor = self.head(self.block(x))
        return logits


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-1, momentum=0.9)


def train(
    model: nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    compiled: bool,
    clipped: bool,
    scheduled: bool,
) -> tuple[list[Tensor], weft.CompileLog]:
    """The losses of the steps, and what was compiled."""
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)

    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    run = weft.compile(step) if compiled else step
    generator = torch.Generator().manual_seed(1)
    log = weft.CompileLog()
    losses = []
    with weft.observe(log):
        for _ in range(STEPS):
            tokens = torch.randint(0, VOCABULARY, (4, LENGTH), generator=generator)
            losses.append(run(tokens).detach())
            if scheduled:
                schedule.step()
    return losses, log


@pytest.mark.parametrize(
    ("make", "clipped", "scheduled"),
    [(adamw, False, False), (momentum, True, False), (adamw, False, True)],
    ids=["adamw", "clipped momentum", "adamw by a schedule"],
)
def test_a_whole_step(
    make: Callable[[Any], torch.optim.Optimizer], clipped: bool, scheduled: bool
) -> None:
    torch.manual_seed(0)
    plain = Language().double()
    model = copy.deepcopy(plain)
    options = {"clipped": clipped, "scheduled": scheduled}
    want, _ = train(plain, make, compiled=False, **options)
    got, log = train(model, make, compiled=True, **options)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    assert not log.graph_breaks
    working = [graph for graph in log.graphs if graph.kernel_count]
    assert len(working) <= 2 + scheduled  # the first step makes the state; a rate that varies
    assert all(graph.eager_reason is None for graph in log.graphs)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


@pytest.mark.parametrize(
    ("make", "extra"),
    [(sgd, ""), (adam, ""), (adamw, "clips"), (sgd, "schedules"), (sgd, "scales")],
    ids=["sgd", "adam", "clipped adamw", "scheduled sgd", "scaled sgd"],
)
def test_a_step_is_one_graph(make: Callable[[Any], torch.optim.Optimizer], extra: str) -> None:
    """With a scaler, which decides on data, the first is two: what that step sets is set in a branch.

    Adam's second step has another update, as its first makes the state; a schedule takes other ways.
    """
    results, counts = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=extra == "scales")  # type: ignore[attr-defined]

        def step(
            x: Tensor,
            model: Any = model,
            optimizer: Any = optimizer,
            schedule: Any = schedule,
            scaler: Any = scaler,
        ) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if extra == "scales":
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                return loss  # type: ignore[no-any-return]
            loss.backward()
            if extra == "clips":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if extra == "schedules":
                schedule.step()
            return loss  # type: ignore[no-any-return]

        run = weft.compile(step) if compiled else step
        generator = torch.Generator().manual_seed(1)
        for _ in range(6):
            log = weft.CompileLog()
            with weft.observe(log):
                results.append(run(torch.randn(8, 5, generator=generator)).detach())
            counts.append(sum(graph.kernel_count > 0 for graph in log.graphs))
        results += list(model.parameters())
    half = len(results) // 2
    torch.testing.assert_close(results[half:], results[:half])
    assert counts[6] <= (2 if extra == "scales" else 1)
    assert max(counts[7:]) <= 1
    assert sum(counts[6:]) <= 5
    assert counts[-1] == 0


def test_a_step_that_returns_its_loss_copies_no_parameters() -> None:
    """Nobody can call backward of it again, for which they would be kept as they were."""
    found: list[Any] = []
    kept: list[bool] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        def update(x: Tensor, model: Any = model) -> Tensor:
            loss: Tensor = model(x).square().mean()
            with torch.no_grad():
                model[0].weight.add_(1.0)  # which no gradient of another reads
            return loss

        for function in (step, update):
            run = weft.compile(function, backend=by_operators) if compiled else function
            loss = run(torch.ones(3, 5))
            if compiled:
                kept.append(bool(loss.grad_fn.plan.overwritten))
                kept.append(not loss.grad_fn.plan.always_raises)
            try:
                found.append(torch.autograd.grad(loss, [model[2].bias])[0])
            except RuntimeError as error:
                found.append(str(error)[:40])
    assert kept == [True, False, True, True]
    assert found[0] == found[2]
    torch.testing.assert_close(found[1], found[3])
