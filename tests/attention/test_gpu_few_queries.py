"""Attention of few queries over many keys on a GPU, beside float64: as close as eager."""

from __future__ import annotations

import pytest
import torch
import weft

from .test_few_queries import (
    MASKS,
    SIZES,
    Mask,
    Write,
    attend,
    by_copy,
    by_image,
    by_index,
    from_the_end,
    nowhere,
    of_heads,
    operands,
    rotated,
    until,
)

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


@pytest.mark.parametrize(
    "size", [(2, 32, 8, 1, 4096, 128, 128), (2, 8, 8, 4, 1500, 64, 64)], ids=str
)
@pytest.mark.parametrize("write", [by_index, by_copy, from_the_end, by_image])
def test_rows_of_a_cache_and_rotations(write: Write, size: tuple[int, ...]) -> None:
    """A token after another: each reads the rows that the same kernel writes, in blocks of its programs."""
    if write is by_image and size[3] > 1:
        pytest.skip("of one query")
    images, heads, shared, queries, keys, width, _ = size

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        at, wave, *caches = others
        write(caches[0], at, rotated(k, wave))
        write(caches[1], at, v)
        return attend(rotated(q, wave), *caches, at, until)

    compiled = weft.compile(step, fullgraph=True, dynamic=False)
    caches = [
        [torch.zeros(images, shared, keys, width).cuda().half() for _ in range(2)] for _ in range(2)
    ]
    for place in (0, 1, 62, 63, 64, 65, *range(1000, 1200, 7), 1400):
        q, k, v = (
            t.cuda()
            for t in operands(
                (images, heads, shared, queries, queries, width, width), torch.float16, True
            )
        )
        at, wave = torch.arange(queries).cuda() + place, torch.randn(queries, width).cuda().half()
        with torch.no_grad():
            got, want = compiled(q, k, v, at, wave, *caches[0]), step(q, k, v, at, wave, *caches[1])
        torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3)
        for one, other in zip(*caches, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
