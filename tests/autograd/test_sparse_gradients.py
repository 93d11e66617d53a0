"""Embeddings whose gradients are sparse stay eager in training; what is around them is compiled."""

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
    assert log.graph_breaks[0].kind == "function that stays eager in training"


@pytest.mark.parametrize("way", WAYS)
def test_inference_is_one_graph(way: str) -> None:
    model = Classifier(WAYS[way])
    indices = torch.tensor([[1, 2], [2, 5]])
    with torch.no_grad():
        found = weft.compile(model, fullgraph=True)(indices)
        torch.testing.assert_close(found, model(indices))
