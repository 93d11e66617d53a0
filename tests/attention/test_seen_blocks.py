"""Which blocks backward of attention passes over, and lines that see no key, beside float64."""

from __future__ import annotations

import math

import pytest
import torch

from .test_gradients import (
    Interpreted,
    T,
    alibi,
    attention,
    codegen,
    compare,
    operands,
    positions,
    window,
)

__all__ = ["codegen"]  # a fixture


HIDDEN = {
    "filled": lambda scores, seen, fill: scores.masked_fill(~seen, fill),
    "added": lambda scores, seen, fill: scores + torch.where(seen, 0.0, fill).to(scores.dtype),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_lines_whose_keys_are_hidden_by_a_number(codegen: Interpreted, name: str) -> None:
    """Their shares are those of all keys; beside the lowest number a sum loses their logarithm."""
    lowest = torch.finfo(torch.bfloat16).min
    seen = torch.ones(70, 75, dtype=torch.bool).tril()
    seen[:, :3] = False

    def function(q: T, k: T, v: T, seen: T) -> T:
        return attention(lambda scores: HIDDEN[name](scores, seen, lowest))(q, k, v)

    compare(codegen, function, *operands(torch.bfloat16), seen)
    assert codegen.programs[1].extern_count == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_bounds_beside_what_is_added(codegen: Interpreted, dtype: torch.dtype) -> None:
    """Blocks that no line sees are passed over, unless a line sees nothing at all: all is NaN then."""
    slopes = torch.tensor([8, 2])
    backward = compare(codegen, attention(alibi), *operands(dtype, 75, 75), slopes)
    assert "is_lost = " in backward.source

    def later(scores: T, slopes: T) -> T:
        queries, keys = positions(scores)
        sloped = scores + slopes[:, None, None].to(scores.dtype) / 16 * (keys - queries)
        return sloped.masked_fill(keys > queries - 5, -math.inf)

    codegen.programs.clear()
    compare(codegen, attention(later), *operands(dtype, 75, 75), slopes)


def test_documents_of_queries_and_keys(codegen: Interpreted) -> None:
    """That differ, and lie in any order; blocks of lines are passed over too."""

    def function(q: T, k: T, v: T, of_queries: T, of_keys: T) -> T:
        def change(scores: T) -> T:
            return torch.where(of_queries[:, None] == of_keys, scores, -math.inf)

        return attention(change)(q, k, v)

    inputs = operands(torch.float16, 70, 75)
    for of_queries in (torch.arange(70) // 24, torch.arange(70) % 3, torch.arange(70) // 20):
        backward = compare(codegen, function, *inputs, of_queries, torch.arange(75) // 25)
        assert backward.extern_count == 0 and backward.source.count("begin = ") == 2


def test_documents_looked_up_by_position(codegen: Interpreted) -> None:
    """As functions of masks do: the mask is computed in backward's kernels, not kept in memory."""

    def change(scores: T, document: T) -> T:
        queries, keys = positions(scores)
        return torch.where(
            (keys <= queries) & (document[queries] == document[keys]), scores, -math.inf
        )

    backward = compare(
        codegen, attention(change), *operands(torch.float16, 75, 75), torch.arange(75) // 20
    )
    assert backward.extern_count == 0 and backward.source.count("begin = ") == 2


def test_groups_of_heads(codegen: Interpreted) -> None:
    """Copies of the values are made after the scores are multiplied, and before they are read."""

    def function(q: T, k: T, v: T) -> T:
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for t in (k, v))
        return attention(window)(q, k, v)

    _, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in operands(torch.float16))
    backward = compare(codegen, function, torch.randn(2, 4, 70, 24).half(), k, v)
    assert backward.extern_count == 0
