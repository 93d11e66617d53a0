"""Heads of keys and values that groups of queries share, by the library's kernels on a GPU."""

from __future__ import annotations

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.gpu


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    (b, h, n, d), count = k.shape, q.shape[1] // k.shape[1]
    keys, values = (
        x[:, :, None].expand(b, h, count, n, d).reshape(b, h * count, n, d) for x in (k, v)
    )
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("heads", [(8, 2), (8, 1), (12, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_repeated_heads(
    dtype: torch.dtype, heads: tuple[int, int], has_mask: bool, queries: int
) -> None:
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": dtype}
    q = torch.randn(2, heads[0], queries, 64, **options)
    k, v = (torch.randn(2, heads[1], 136, 64, **options) for _ in range(2))
    mask = torch.rand(2, 1, queries, 136, device="cuda") > 0.3 if has_mask else None
    exact = attend(*(x.double() for x in (q, k, v)), mask)
    with torch.no_grad():
        compiled = weft.compile(attend, fullgraph=True)
        for _ in range(3):
            found = compiled(q, k, v, mask)
    assert (found.double() - exact).norm() / exact.norm() < 1e-2
