"""Attention over a cache that a decoding loop writes by slices, on a GPU: beside eager, call by call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.gpu

Step = Callable[..., torch.Tensor]

HEADS, LENGTH = 4, 12


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.view(x.shape[0], -1, HEADS, width).transpose(1, 2)


def _one_step(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor, n: int) -> torch.Tensor:
    """The next token's output; ``cache [2, batch, heads, LENGTH, width]`` is written at ``n - 1``."""
    width = cache.shape[-1]
    query, key, value = (_heads(p, width) for p in (x @ w).chunk(3, -1))
    cache[0, :, :, n - 1 : n] = key
    cache[1, :, :, n - 1 : n] = value
    seen = F.scaled_dot_product_attention(query, cache[0, :, :, :n], cache[1, :, :, :n])
    return seen.transpose(1, 2).flatten(2)


def _grown(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor, n: int) -> torch.Tensor:
    """The same by a cache that is concatenated, with a mask of ``n`` columns."""
    width = cache.shape[-1]
    query, key, value = (_heads(p, width) for p in (x @ w).chunk(3, -1))
    keys = torch.cat([cache[0, :, :, : n - 1], key], 2)
    values = torch.cat([cache[1, :, :, : n - 1], value], 2)
    cache[0, :, :, n - 1 : n], cache[1, :, :, n - 1 : n] = key, value
    mask = (torch.arange(n, device=x.device) % 3 != 1).to(x.dtype)[None, None, None].log()
    seen = F.scaled_dot_product_attention(query, keys, values, mask.clamp(-50))
    return seen.transpose(1, 2).flatten(2)


def _loop(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor, n: int) -> torch.Tensor:
    """All steps up to ``n`` in one program."""
    for k in range(n):
        x = _one_step(x, w, cache, k + 1)
    return x


def _run(step: Step, dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(1, 1, HEADS * width, device="cuda").to(dtype)
    w = (torch.randn(HEADS * width, 3 * HEADS * width, device="cuda") / width).to(dtype)
    cache = torch.zeros(2, 1, HEADS, LENGTH, width, device="cuda", dtype=dtype)
    results = []
    for n in range(1, LENGTH + 1):
        x = step(x, w, cache, n)
        results.append(x)
    return [*results, cache]


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("width", [8, 10, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", [_one_step, _grown, _loop])
def test_caches_written_by_slices(
    step: Step, dtype: torch.dtype, width: int, dynamic: bool | None
) -> None:
    with torch.no_grad():
        eager, got = (
            _run(step, dtype, width),
            _run(weft.compile(step, dynamic=dynamic), dtype, width),
        )
    error = 1e-4 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(got, eager, rtol=error, atol=error)
