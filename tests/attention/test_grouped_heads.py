"""Gradients of attention whose heads share keys and values, beside float64."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch
import weft
import weft.registry

from .test_gradients import (
    Interpreted,
    T,
    attention,
    codegen,
    compare,
    gradients,
    window,
    with_bias,
)

__all__ = ["codegen"]  # a fixture


def grouped(q: T, k: T, v: T) -> T:
    """Each head of keys, and each of values, is that of several heads of queries."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return attention(window)(q, k, v)


def with_heads(tokens: int, heads: int, width: int, dtype: torch.dtype) -> T:
    """As a projection gives them: elements of a token lie together."""
    return torch.randn(2, tokens, heads, width).to(dtype).transpose(1, 2)


def launches_behind(source: str) -> list[str]:
    """What a backward program launches after the gradients of the queries: its comments say it."""
    behind = re.split(r"# attention_backward_dq_\d+\[", source)[1].split("return")[0]
    return re.findall(r"# \w+\[.*", behind)


GROUPS = [(2, 2, 2), (4, 2, 2), (3, 1, 1), (4, 1, 1), (4, 2, 1)]
"""Heads of queries, of keys and of values."""


@pytest.mark.parametrize(
    ("heads", "dtype"),
    list(
        zip(GROUPS, itertools.cycle([torch.float16, torch.float32, torch.bfloat16]), strict=False)
    ),
    ids=str,
)
def test_groups_of_heads(
    codegen: Interpreted, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """A program by keys goes through the heads that read them: nothing is added up or copied afterwards."""
    sizes = zip((34, 37, 37), heads, (16, 16, 24), strict=True)
    q, k, v = (with_heads(tokens, count, width, dtype) for tokens, count, width in sizes)
    backward = compare(codegen, grouped, q, k, v)
    assert backward.extern_count == 0
    assert ("for member in" in backward.source) is (heads[0] != min(heads))
    assert not launches_behind(backward.source)


def test_groups_where_programs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program has keys of one head of queries; another kernel adds up."""
    codegen = Interpreted()
    codegen.options = replace(codegen.options, fuse_attention=None)
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: codegen)
    q, k, v = (with_heads(40, heads, 16, torch.float16) for heads in (4, 2, 2))
    (added,) = launches_behind(compare(codegen, grouped, q, k, v).source)
    assert "sum_dim" in added


def test_lines_that_see_nothing_in_a_group(codegen: Interpreted) -> None:
    """NaN as in eager, in the gradients of every key of their group alone."""
    q, k, v = (with_heads(40, heads, 16, torch.float32) for heads in (4, 2, 2))
    bias = torch.zeros(4, 40, 40)
    bias[1, 5] = -math.inf
    bias[3, 7, 3:] = -math.inf

    def function(q: T, k: T, v: T) -> T:
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        return attention(with_bias)(q, k, v, bias)

    compare(codegen, function, q, k, v)


def test_gradients_lie_where_projections_read_them(codegen: Interpreted) -> None:
    """Heads of a token side by side, without copies before the products that read them."""

    def function(x: T, projections: T, out: T) -> T:
        q, k, v = (
            (x @ projection).view(2, 40, -1, 16).transpose(1, 2)
            for projection in projections.split((64, 32, 32), 1)
        )
        return grouped(q, k, v).transpose(1, 2).reshape(2, 40, 64) @ out

    x, projections, out = (torch.randn(n) for n in ((2, 40, 24), (24, 128), (64, 8)))
    wide = tuple(t.double() for t in (x, projections, out))
    tangent = torch.randn(2, 40, 8)
    exact = gradients(function, wide, tangent)
    found = gradients(weft.compile(function, fullgraph=True), (x, projections, out), tangent)
    for got, want in zip(found, exact, strict=True):
        scale = want.abs().max()
        torch.testing.assert_close(got.double() / scale, want / scale, rtol=0, atol=1e-5)
    assert "clone" not in " ".join(launches_behind(codegen.programs[1].source))
