"""Attention masks that are known while compiling: dropped where they may be, and results are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F
from weft.known_masks import ATTENTION, drop_known_masks

N = 6


def padded(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[:, :2] = False
    return mask


def written_through_a_view(q: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(N, N)
    mask[0].fill_(1.0)
    return mask


MASKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool | None]] = {
    "everything": (lambda q: torch.ones(N, N, dtype=torch.bool), False),
    "everything, expanded": (lambda q: (torch.arange(1) >= 0)[:, None].expand(N, N), False),
    "everything, added": (lambda q: torch.zeros(2, 1, N, N), False),
    "causal": (lambda q: torch.ones(N, N, dtype=torch.bool, device=q.device).tril(), True),
    "causal positions": (
        lambda q: torch.where(torch.arange(N)[None, :] <= torch.arange(N)[:, None], 0.0, -math.inf),
        True,
    ),
    "positions that are embedded too": (
        lambda q: (
            (p := torch.arange(N)[None])
            + F.embedding(p, torch.zeros(N, 1, dtype=torch.long))[..., 0] * 0
            <= p.t()
        ),
        None,
    ),
    "packed": (
        lambda q: (torch.arange(N) // 3)[None, :] == (torch.arange(N) // 3)[:, None],
        None,
    ),
    "a band": (lambda q: torch.ones(N, N, dtype=torch.bool).tril().triu(-2), None),
    "causal, with a bias": (lambda q: torch.ones(N, N).tril() * 2, None),
    "almost hidden": (lambda q: (1 - torch.ones(N, N).tril()) * -1e4, None),
    "of an input": (lambda q: q[0, 0, :, :N] * 0, None),
    "random": (lambda q: torch.rand(N, N) * 0, None),
    "written in place": (padded, None),
    "written through a view": (written_through_a_view, None),
}


@pytest.mark.parametrize("name", MASKS)
def test_results_and_what_is_dropped(name: str) -> None:
    make, causal = MASKS[name]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, make(q)) * 2

    seen: list[tuple[bool, object]] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        drop_known_masks(graph_module)
        graph_module.recompile()
        assert "scaled_dot_product" in graph_module.code
        assert ("is_causal" in graph_module.code) is (causal is not None)
        (node,) = graph_module.graph.find_nodes(op="call_function", target=ATTENTION)
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        seen.append((mask is None, node.kwargs.get("is_causal")))
        return graph_module.forward

    q, k, v = torch.randn(3, 2, 4, N, 8).unbind()
    for compiled in (weft.compile(attend, backend=backend), weft.compile(attend)):
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))
    assert seen[0][0] is (causal is not None)
    if causal is not None:
        assert seen[0][1] is causal


def test_gradients_with_a_known_mask() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(N, N, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, q, q, mask, 0.0, scale=0.3)

    results = []
    for function in (attend, weft.compile(attend)):
        torch.manual_seed(0)
        q = torch.randn(2, 4, N, 8, requires_grad=True)
        function(q).square().sum().backward()
        results.append(q.grad)
    torch.testing.assert_close(results[1], results[0])
