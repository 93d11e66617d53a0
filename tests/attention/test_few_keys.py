"""Attention over few keys, or with a mask that is trained, as Triton kernels: beside eager and float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import weft
import weft.registry
from torch.nn import functional as F

from .interpreted import Interpreted

T = torch.Tensor


@pytest.fixture
def codegen(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    made = Interpreted()
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: made)
    return made


SIZES = {
    "narrow heads": (3, 16, 16, 6),
    "fewer than a block": (2, 9, 5, 24),
    "more queries": (1, 70, 20, 16),
    "one query": (2, 1, 33, 8),
    "wide heads": (1, 20, 30, 72),
    "all that are few": (1, 64, 64, 16),
}


def attend(q: T, k: T, v: T, *mask: T) -> T:
    """Of heads that lie behind each other, as models cut them."""
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, *mask, scale=0.3)


def results(function: Any, operands: list[T], tangent: T) -> tuple[T, ...]:
    leaves = [x.detach().requires_grad_() for x in operands]
    result = function(*leaves)
    return (result, *torch.autograd.grad(result, leaves, tangent.to(result.dtype)))


@pytest.mark.parametrize("with_mask", [False, True], ids=["plain", "with a trained mask"])
@pytest.mark.parametrize("name", SIZES)
def test_few_keys(codegen: Interpreted, name: str, with_mask: bool) -> None:
    batch, queries, keys, width = SIZES[name]
    wide = [torch.randn(batch, n, 2, width).double() for n in (queries, keys, keys)]
    if with_mask:
        wide.append(torch.randn(1, 2, queries, keys).double())
        wide[-1][:, 0, 0] = -math.inf  # a row that sees nothing
    tangent = torch.randn(batch, 2, queries, width)
    narrow = [x.half() for x in wide]
    compiled = results(weft.compile(attend, fullgraph=True), narrow, tangent)
    eager, exact = results(attend, narrow, tangent), results(attend, wide, tangent)
    assert compiled[0].stride() == eager[0].stride()
    for found, beside, wanted in zip(compiled, eager, exact, strict=True):
        assert found.dtype == beside.dtype
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 2 * (beside.double() - wanted).norm() / wanted.norm() + 1e-4
    if not with_mask:
        assert [program.extern_count for program in codegen.programs] == [0, 0]
        assert all("def attention" in program.source for program in codegen.programs)


def test_under_autocast(codegen: Interpreted) -> None:
    operands = [torch.randn(2, 12, 2, 8) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = weft.compile(attend)(*operands), attend(*operands)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert found.stride() == wanted.stride()
    assert "def attention" in codegen.programs[0].source


@pytest.mark.parametrize("keywords", [{"dropout_p": 0.5}, {"is_causal": True}], ids=str)
def test_what_stays_the_librarys(codegen: Interpreted, keywords: dict[str, Any]) -> None:
    x = torch.randn(2, 2, 16, 8).half()
    compiled = weft.compile(lambda x: F.scaled_dot_product_attention(x, x, x, **keywords))
    assert compiled(x).shape == x.shape
    assert all("def attention" not in program.source for program in codegen.programs)


def test_lengths_that_vary(codegen: Interpreted) -> None:
    compiled = weft.compile(attend, dynamic=True)
    for length in (70, 12, 40):
        operands = [torch.randn(2, length, 2, 8).half() for _ in range(3)]
        torch.testing.assert_close(compiled(*operands), attend(*operands), rtol=1e-2, atol=1e-2)
