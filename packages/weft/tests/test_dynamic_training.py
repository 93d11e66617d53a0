"""Training with sizes and numbers that change: one program forward and one backward for all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.outer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: float) -> Any:
        batch, length, _ = x.shape
        hidden = F.gelu(self.norm(self.inner(x)))
        scores = (hidden @ hidden.transpose(1, 2)) * length**-0.5
        mixed = scores.softmax(-1) @ hidden
        flat = self.outer(mixed).reshape(batch * length, 4)
        return flat.mean(0) * scale, mixed[:, -1], (flat / length).t()


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 6)
        self.head = torch.nn.Linear(6, 11)

    def forward(self, x: torch.Tensor, scale: float) -> Any:
        tokens = x.detach().abs().sum(-1).long() % 11
        logits = self.head(self.table(tokens[:, :-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return loss * (1 - scale * 0.5) + x.sum() * 0


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor, scale: float) -> Any:
        hidden = F.relu(self.norm(self.first(x[:, None])))
        return F.avg_pool2d(hidden, 2).mean((2, 3)) + scale, F.pad(hidden, (1, 1)).sum()


def total(results: Any) -> torch.Tensor:
    results = results if isinstance(results, tuple) else (results,)
    return torch.stack([result.square().sum() for result in results]).sum()


SIZES = ((3, 6), (4, 8), (2, 9), (6, 5), (5, 13))


@pytest.mark.parametrize("make", [Attention, Tokens, Image])
def test_two_compilations_train_on_every_size(make: Callable[[], torch.nn.Module]) -> None:
    model = make()
    other = copy.deepcopy(model)
    compiled, log = weft.compile(other, fullgraph=True), weft.CompileLog()
    with weft.observe(log):
        for step, (batch, length) in enumerate(SIZES):
            x = torch.randn(batch, length, 8, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            wanted, found = model(x, 0.5 / (step + 1)), compiled(y, 0.5 / (step + 1))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            total(wanted).backward()
            total(found).backward()
            torch.testing.assert_close(y.grad, x.grad, rtol=1e-3, atol=1e-3)
            for left, right in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(right.grad, left.grad, rtol=1e-3, atol=1e-3)
    for left, right in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(right, left)
    # torch 2.11's rules for convolutions ask more of the sizes than later ones.
    assert len(log.graphs) == 2 or torch.__version__ < "2.12"
    assert all(report.eager_reason is None for report in log.graphs)


def test_sizes_live_through_backward_where_no_tensor_shows_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sum() * x.size(0) + x.view(-1).exp().sum() / x.size(1)

    compiled, log = weft.compile(function, fullgraph=True), weft.CompileLog()
    with weft.observe(log):
        for size in SIZES:
            x = torch.randn(size, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            function(x).backward()
            compiled(y).backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert len(log.graphs) == 2


def test_unused_results_and_repeated_gradients() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t().sigmoid(), x.flatten() * 2

    compiled = weft.compile(function, fullgraph=True)
    for size in SIZES:
        x = torch.randn(size, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for tensor, run in ((x, function), (y, compiled)):
            first, _ = run(tensor)
            first.sum().backward(retain_graph=True)
            first.pow(2).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.filterwarnings("ignore:weft. gradients of gradients")
def test_gradients_of_gradients_for_every_size() -> None:
    def function(x: torch.Tensor, rate: float) -> torch.Tensor:
        return (x.sin() * rate).reshape(-1).pow(2).sum() / x.size(0)

    compiled = weft.compile(function, fullgraph=True)
    for step, size in enumerate(SIZES, 1):
        x = torch.randn(size, requires_grad=True)
        found, wanted = (
            torch.autograd.grad(run(x, 1 / step), x, create_graph=True)[0]
            for run in (compiled, function)
        )
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            *(torch.autograd.grad(gradient.sum(), x)[0] for gradient in (found, wanted))
        )
