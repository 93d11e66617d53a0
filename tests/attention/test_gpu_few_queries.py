"""Attention of few queries over many keys on a GPU, beside float64: as close as eager."""

from __future__ import annotations

import pytest
import torch
import weft

from .test_few_queries import MASKS, SIZES, Mask, attend, nowhere, of_heads, operands

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("size", [*SIZES, (1, 32, 8, 1, 4096, 128, 128)], ids=str)
def test_beside_float64(size: tuple[int, ...], mask: Mask, dtype: torch.dtype) -> None:
    """Called five times, so that the last calls replay a recording."""
    if mask is of_heads and size[:2] != (2, 4):
        pytest.skip("made for two images of four heads")
    q, k, v = (t.cuda() for t in operands(size, dtype, True))
    at = torch.linspace(size[4] // 3, size[4] // 2, size[3]).long().cuda()

    def twice(q: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Both read what the other kernel has left in the counters."""
        first = attend(q, k, v, at, mask)
        return attend(q + 1, k, v, at, mask) + 2 * first

    compiled = weft.compile(twice, fullgraph=True, dynamic=False)
    with torch.no_grad():
        eager = twice(q, at)
        results = [compiled(q, at) for _ in range(5)]
        k, v = k.double(), v.double()
        exact = twice(q.double(), at)
    if mask is nowhere:  # of rows without keys the libraries give zeros, or NaN
        shown = exact.isfinite() & eager.isfinite()
        results, eager, exact = [r[shown] for r in results], eager[shown], exact[shown]
    allowed = (eager.double() - exact).abs().max()
    for got in results:
        error = (got.double() - exact).abs().max()
        assert error <= 1.5 * allowed + 4 * torch.finfo(dtype).eps, (error, allowed)
