"""Transformers models, as torch-level graphs, beside eager in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer block: GPT-2's with ``causal``, BERT's without."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) if self.causal else x
        parts = self.query_key_value(y).chunk(3, dim=-1)
        query, key, value = (
            p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in _three(parts)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + F.dropout(self.projection(y.transpose(1, 2).flatten(2)), 0.1, False)
        if not self.causal:
            x = self.first(x)
        x = x + self.down(F.gelu(self.up(self.second(x) if self.causal else x)))
        return x if self.causal else self.second(x)


def _three(parts: Any) -> tuple[Any, Any, Any]:
    return parts[0], parts[1], parts[2]


class LanguageModel(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.blocks = nn.Sequential(*(Block(16, 4, causal) for _ in range(2)))
        self.register_buffer("positions", torch.arange(12).expand(2, 12))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks(self.token(ids) + self.position(self.positions))
        return x @ self.token.weight.t()


@pytest.mark.parametrize("causal", [False, True], ids=["bert", "gpt2"])
def test_transformer(forward: Any, causal: bool) -> None:
    model = LanguageModel(causal).double().eval()
    traced = forward(model, torch.randint(0, 50, (2, 12)))
    targets = {str(n.target) for n in traced.graph_module.graph.nodes if n.op == "call_function"}
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in targets
    assert "aten.native_layer_norm.default" in targets


def test_convolutional_network_with_inplace_activations(forward: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.SiLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.Hardswish(inplace=True),
    )
    forward(model.double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_recurrent_loop(forward: Any) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Any:
            state = cell = torch.zeros_like(x[:, 0])
            outputs = torch.zeros_like(x)
            for step in range(6):
                gates = self.cell(torch.cat([x[:, step], state], 1))
                i, f, g, o = (gates[:, 4 * k : 4 * k + 4] for k in range(4))
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                state = o.sigmoid() * cell.tanh()
                outputs.select(1, step).copy_(state)
            return outputs, state

    forward(Recurrent().double(), torch.randn(2, 6, 4, dtype=torch.float64))
