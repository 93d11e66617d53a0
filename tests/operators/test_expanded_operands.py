"""Operators of what a program has filled, which is one number in memory: eager's results, on all elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "median": torch.median,
    "median of rows": lambda x: x.median(-1),
    "median of columns": lambda x: x.median(0, keepdim=True),
    "nanmedian": torch.nanmedian,
    "nanmedian of rows": lambda x: x.nanmedian(-1)[0],
    "mode": lambda x: x.mode(-1)[0],
    "kthvalue": lambda x: x.kthvalue(2)[0],
    "sort": lambda x: x.sort(dim=-1, stable=True),
    "topk": lambda x: x.topk(2)[0],
    "cumsum": lambda x: x.cumsum(0),
    "histc": lambda x: x.float().histc(4, -2, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_filled_tensors(name: str, dtype: torch.dtype) -> None:
    def filled(x: torch.Tensor, part: torch.Tensor) -> Any:
        x[...] = 1.5
        part[:, 1:] = x.sum()
        return OPERATORS[name](x), OPERATORS[name](part)

    found, wanted = (
        function(torch.randn(3, 5).to(dtype), torch.ones(3, 5, dtype=dtype))
        for function in (weft.compile(filled, fullgraph=True), filled)
    )
    torch.testing.assert_close(found, wanted)
