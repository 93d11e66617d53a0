"""Loads and stores at computed places: gathers, scatters, windows, concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen

from .comparing import check

I = torch.tensor([[3, -1, 0], [2, 2, -4]])  # noqa: E741 - an index
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "index": (lambda x, i: x[i] + 1, (X, I)),
    "index of a column": (lambda x, i: x[:, i] * 2, (X, I)),
    "gather": (lambda x, i: x.gather(0, i), (X, I.abs() % 4)),
    "embedding": (lambda x, i: F.embedding(i, x).relu(), (X, I.abs() % 4)),
    "index select": (lambda x, i: x.index_select(1, i[0]), (X, I.abs())),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=7.0) * 2, (X,)),
    "concatenation": (lambda x: torch.cat([x, x.exp(), x[:, :1]], 1) + 1, (X,)),
    "stack": (lambda x: torch.stack([x, x + 1], 1), (X,)),
    "slices": (lambda x: x[1:, ::2] - x[:-1, 1::2], (X,)),
    "max pool": (lambda x: F.max_pool2d(x[None, None], 2), (X,)),
    "average pool": (lambda x: F.avg_pool2d(x[None, None], 3, 1, 1), (X,)),
    "upsample": (lambda x: F.interpolate(x[None, None], scale_factor=2.0), (X,)),
    "triangle": (lambda x: x.tril() + x.triu(1) * 2, (X,)),
    "index put": (lambda x, i: x.index_put((i[0],), x[:3] * 0 + 5), (X, I.abs() % 4)),
    "slice scatter": (lambda x: x.slice_scatter(x[:2] * 0, 0, 1, 3), (X,)),
    "one hot": (lambda i: F.one_hot(i.abs(), 5), (I,)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(codegen: TritonCodegen, name: str) -> None:
    function, inputs = CASES[name]
    check(codegen, function, *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_scatters_accumulate(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    target, source = torch.zeros(4, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype) * 2
    index = torch.tensor([[1, 1, 0], [1, 3, 0]])
    check(codegen, lambda t, i, s: t.scatter_add(0, i, s), target, index, source)
    check(codegen, lambda t, i, s: t.index_add(0, i[:, 0], s), target, index, source)
    check(
        codegen, lambda t, i, s: t.index_put((i[:, 1],), s, accumulate=True), target, index, source
    )


def test_an_index_out_of_range_is_an_error(codegen: TritonCodegen) -> None:
    program = check(codegen, lambda x, i: x[i], X, I)
    assert "tl.device_assert" in program.source
    with pytest.raises(Exception, match="out of bounds"):
        program(X, I + 9)
