"""Embeddings whose gradients are sparse are eager's calls before the graph; the rest is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self, embed: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = embed
        self.weight = nn.Parameter(torch.randn(10, 3))
        self.head = nn.Linear(3, 2)

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.embed(indices + 1, self.weight).relu()).log_softmax(-1)


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda i, w: F.embedding(i, w, sparse=True),
    "by position": lambda i, w: F.embedding(i, w, None, None, 2.0, False, True),
    "operator": lambda i, w: torch.embedding(w, i, -1, False, True),
    "bag": lambda i, w: F.embedding_bag(i, w, mode="sum", sparse=True),
    "operator of a bag": lambda i, w: torch.embedding_bag(
        w, i.flatten(), torch.tensor([0, 2]), False, 0, True
    )[0],
}


def step(model: Callable[..., Any], parameters: list[nn.Parameter]) -> list[Tensor]:
    result = model(torch.tensor([[1, 2], [2, 5]]))
    gradients = torch.autograd.grad(result.pow(2).sum(), parameters)
    return [result.detach(), *gradients]


@pytest.mark.parametrize("way", WAYS)
def test_training(way: str) -> None:
    model = Classifier(WAYS[way])
    parameters = list(model.parameters())
    log = weft.CompileLog()
    with weft.observe(log):
        found = step(weft.compile(model), parameters)
    for got, want in zip(found, step(model, parameters), strict=True):
        assert got.layout == want.layout
        torch.testing.assert_close(got.to_dense(), want.to_dense())
    assert log.kernel_count > 0
    assert all(report.eager_reason is None for report in log.graphs)
    kinds = {found.kind for found in log.graph_breaks}
    wanted = {"function that stays eager in training"} if way == "operator of a bag" else set()
    assert kinds == wanted


@pytest.mark.parametrize("way", WAYS)
def test_inference_is_one_graph(way: str) -> None:
    model = Classifier(WAYS[way])
    indices = torch.tensor([[1, 2], [2, 5]])
    with torch.no_grad():
        found = weft.compile(model, fullgraph=True)(indices)
        torch.testing.assert_close(found, model(indices))


def _tied(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i, w, sparse=True).tanh() @ w.t()


def _twice(i: Tensor, w: Tensor) -> Tensor:
    rows = F.embedding(i.flip(0), w, sparse=True)
    return rows * F.embedding(i.clamp(max=1), w, sparse=True, padding_idx=0)


def _of_a_column(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i[:, 1].reshape(-1, 1), w, sparse=True).sum(1)


def _returned(i: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rows = F.embedding(i, w, sparse=True)
    return rows, rows.exp()


ONE_GRAPH = [_tied, _twice, _of_a_column, _returned]


def _renormalised(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i, w, max_norm=0.5, sparse=True) * 2


def _indices_written(i: Tensor, w: Tensor) -> Tensor:
    i.add_(1)
    return F.embedding(i, w, sparse=True) * 2


def _weight_written(i: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        w.mul_(2)
    return F.embedding(i, w, sparse=True) * 2


def _weight_written_after(i: Tensor, w: Tensor) -> Tensor:
    rows = F.embedding(i, w, sparse=True)
    with torch.no_grad():
        w.mul_(2)
    return rows.sin() + w.detach().sum()


def _weight_computed(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i, w * 2, sparse=True) * 2


def _gradients_enabled_inside(i: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        before = w.sum()
        with torch.enable_grad():
            rows = F.embedding(i, w, sparse=True)
    return rows * before


def _out_of_range(i: Tensor, w: Tensor) -> Tensor:
    try:
        return F.embedding(i + 100, w, sparse=True) * 2
    except IndexError:
        return w * 3


def _chosen_by_data(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i[i > 1], w, sparse=True).cos()


def _changed_before(i: Tensor, w: Tensor) -> Tensor:
    w.calls = getattr(w, "calls", 0) + 1  # type: ignore[attr-defined]
    return F.embedding(i, w, sparse=True) * w.calls  # type: ignore[attr-defined]


OTHERS = [
    _changed_before,
    _renormalised, _indices_written, _weight_written, _weight_written_after, _weight_computed,
    _gradients_enabled_inside, _out_of_range, _chosen_by_data,
]  # fmt: skip


def _outcome(run: Callable[..., Any], rows: int) -> list[Tensor]:
    torch.manual_seed(rows)
    weight = nn.Parameter(torch.randn(10, 3))
    indices = torch.randint(0, 6, (rows, 2))
    results = run(indices, weight)
    results = results if isinstance(results, tuple) else (results,)
    sum(result.square().sum() for result in results).backward()
    assert weight.grad is not None
    facts = [torch.tensor([r.is_leaf, r.requires_grad]) for r in results]
    return [*facts, *results, weight.grad, indices, weight]


def _check(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for rows in (2, 2, 3, 4, 5):
        for found, wanted in zip(_outcome(compiled, rows), _outcome(function, rows), strict=True):
            assert found.layout == wanted.layout
            torch.testing.assert_close(found.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("function", ONE_GRAPH)
def test_one_graph(function: Callable[..., Any]) -> None:
    log = weft.CompileLog()
    with weft.observe(log):
        _check(function, weft.compile(function))
    assert not log.graph_breaks and 1 <= len(log.graphs) <= 2


@pytest.mark.parametrize("function", OTHERS)
def test_what_does_not_come_first_is_eagers(function: Callable[..., Any]) -> None:
    _check(function, weft.compile(function))
