"""Jagged tensors through every stage: a model of sequences of several lengths, trained, is one graph."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


class Encoder(nn.Module):
    """A layer of attention over sequences of tokens, one behind another."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.norm, self.feed = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        normal = self.norm(x)
        q, k, v = (
            layer(normal).unflatten(-1, (2, 8)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + F.gelu(self.feed(x))
        padded = torch.nested.to_padded_tensor(x, 0.0)
        return padded.sum(1), padded


class OfRows(Encoder):
    """The same of tokens in a row; how long the longest sequence is follows from the offsets."""

    def forward(self, tokens, offsets):
        return super().forward(torch.nested.nested_tensor_from_jagged(tokens, offsets))


def given(*lengths):
    parts = [torch.randint(0, 20, (n,)) for n in lengths]
    return (torch.nested.nested_tensor(parts, layout=torch.jagged),)


def rows(*bounds):
    return torch.randint(0, 20, (bounds[-1],)), torch.tensor([0, *bounds])


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (Encoder, [given(2, 5), given(4, 1, 3), given(3, 6, 1, 1)]),
        (OfRows, [rows(2, 5, 9), rows(3, 4, 9), rows(5, 6), rows(1, 2, 3)]),
    ],
)
@pytest.mark.parametrize("trained", [False, True])
def test_a_model_of_sequences_is_one_graph(kind, calls, trained):
    torch.manual_seed(0)
    model = kind()
    plain = copy.deepcopy(model)
    program, log = weft.compile(model, fullgraph=True), weft.CompileLog()
    with weft.observe(log), torch.set_grad_enabled(trained):
        for call in calls:
            found, wanted = program(*call), plain(*call)
            torch.testing.assert_close(found, wanted)
            if trained:
                model.zero_grad(), plain.zero_grad()
                sum(x.sin().sum() for x in found).backward()
                sum(x.sin().sum() for x in wanted).backward()
                for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(mine.grad, other.grad)
    assert len(log.graphs) == 2
    assert not any(graph.eager_reason for graph in log.graphs)
