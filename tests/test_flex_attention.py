"""``flex_attention`` called uncompiled, which torch runs through a capture of its own: right, in pieces."""

from __future__ import annotations

import math

import torch
import weft
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

T = torch.Tensor
Q, K, V = (
    torch.randn(2, 3, n, 16, generator=torch.Generator().manual_seed(n)) for n in (20, 21, 22)
)
K, V = K[:, :, :20], V[:, :, :20]


def causal(b: T, h: T, query: T, key: T) -> T:
    return key <= query


def test_beside_what_it_stands_for() -> None:
    """The call breaks the graph; what is written out in its place is one."""
    slopes = torch.tensor([0.5, 0.25, 0.125])
    mask = create_block_mask(causal, None, None, 20, 20, device="cpu")

    def alibi(score: T, b: T, h: T, query: T, key: T) -> T:
        return score + slopes[h] * (key - query)

    def flexible(q: T, k: T, v: T) -> T:
        return flex_attention(q * 2, k, v, score_mod=alibi, block_mask=mask) + 1

    def written_out(q: T, k: T, v: T) -> T:
        query, key = torch.arange(20)[:, None], torch.arange(20)
        scores = (q * 2) @ k.mT / math.sqrt(16) + slopes[:, None, None] * (key - query)
        return torch.softmax(scores.masked_fill(key > query, -math.inf), -1) @ v + 1

    graphs = []
    for function in (flexible, written_out):
        with weft.observe(weft.CompileLog()) as log, torch.no_grad():
            result = weft.compile(function)(Q, K, V)
        torch.testing.assert_close(result, written_out(Q, K, V), rtol=1e-5, atol=1e-5)
        graphs.append(len(log.graphs))
    assert graphs == [2, 1]
