"""``flex_attention`` called uncompiled, which torch runs through a capture of its own: one graph."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn.attention.flex_attention import (
    and_masks,
    create_block_mask,
    flex_attention,
    noop_mask,
)

T = torch.Tensor
HEADS, QUERIES, KEYS = 4, 20, 24
SLOPES = torch.tensor([0.5, 0.25, 0.125, 1.0])
DOCUMENTS = torch.arange(KEYS) // 7
TABLE = torch.randn(9, HEADS, generator=torch.Generator().manual_seed(3))


def operands(dtype: torch.dtype = torch.float32, groups: int = HEADS) -> tuple[T, T, T]:
    sizes = ((2, HEADS, QUERIES, 16), (2, groups, KEYS, 16), (2, groups, KEYS, 8))
    return tuple(torch.randn(size).to(dtype) for size in sizes)  # type: ignore[return-value]


def causal(b: T, h: T, query: T, key: T) -> T:
    return key <= query


def same_document(b: T, h: T, query: T, key: T) -> T:
    return DOCUMENTS[query] == DOCUMENTS[key]


def far(b: T, h: T, query: T, key: T) -> T:
    """Of which some lines see no key."""
    return key >= query + 10


def alibi(score: T, b: T, h: T, query: T, key: T) -> T:
    return score + SLOPES[h] * (key - query)


def capped(score: T, b: T, h: T, query: T, key: T) -> T:
    return torch.tanh(score / 5) * 5


def relative(score: T, b: T, h: T, query: T, key: T) -> T:
    return score + TABLE[(key - query).clamp(-4, 4) + 4, h]


def block(mask: Callable[..., T]) -> Any:
    return create_block_mask(mask, None, None, QUERIES, KEYS, device="cpu")


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a scale": {"scale": 0.5},
    "causal": {"block_mask": block(causal)},
    "everything": {"block_mask": block(noop_mask)},
    "documents": {"block_mask": block(and_masks(causal, same_document))},
    "lines without a key": {"block_mask": block(far)},
    "ALiBi": {"score_mod": alibi, "block_mask": block(causal)},
    "capped": {"score_mod": capped},
    "relative": {"score_mod": relative},
    "options": {"kernel_options": {"BLOCK_M": 32}},
}


def graphs_of(function: Callable[..., Any], *inputs: T) -> tuple[Any, int]:
    with weft.observe(weft.CompileLog()) as log:
        result = weft.compile(function)(*inputs)
    return result, len(log.graphs)


@pytest.mark.parametrize("name", CASES)
def test_one_graph(name: str) -> None:
    def function(q: T, k: T, v: T) -> T:
        return flex_attention(q * 2, k, v, **CASES[name]) + 1

    inputs = operands()
    with torch.no_grad():
        result, graphs = graphs_of(function, *inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=1e-5, atol=1e-5)
    assert graphs == 1


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    """Beside what is written out for each element, since torch has no gradients of it on the CPU."""

    def function(q: T, k: T, v: T) -> T:
        return flex_attention(q, k, v, **CASES[name])

    def written_out(q: T, k: T, v: T) -> T:
        score, mask = CASES[name].get("score_mod"), CASES[name].get("block_mask")
        places = torch.meshgrid(*map(torch.arange, (2, HEADS, QUERIES, KEYS)), indexing="ij")
        scores = q @ k.mT * CASES[name].get("scale", 0.25)
        scores = scores if score is None else score(scores, *places)
        if mask is not None:
            scores = scores.masked_fill(~mask.mask_mod(*places), -math.inf)
        return torch.softmax(scores, -1).nan_to_num(0.0) @ v

    inputs = tuple(t.requires_grad_() for t in operands())
    result, graphs = graphs_of(function, *inputs)
    assert graphs == 1
    expected = written_out(*inputs)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    tangent = torch.randn_like(result)
    got, want = (torch.autograd.grad(t, inputs, tangent) for t in (result, expected))
    want = tuple(t.nan_to_num(0.0) for t in want)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_groups_of_heads(dtype: torch.dtype) -> None:
    def function(q: T, k: T, v: T) -> T:
        return flex_attention(q, k, v, score_mod=alibi, enable_gqa=True)

    inputs = operands(dtype, groups=2)
    with torch.no_grad():
        result, graphs = graphs_of(function, *inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=1e-2, atol=1e-2)
    assert graphs == 1


def test_a_table_gets_its_gradient() -> None:
    def function(q: T, k: T, v: T, table: T) -> T:
        def biased(score: T, b: T, h: T, query: T, key: T) -> T:
            return score + table[(key - query).clamp(-4, 4) + 4, h]

        return flex_attention(q, k, v, score_mod=biased)

    table = TABLE.clone().requires_grad_()
    q, k, v = operands()
    result, graphs = graphs_of(function, q, k, v, table)
    (gradient,) = torch.autograd.grad(result.square().sum(), table)
    line, column = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    bias = table[(column - line).clamp(-4, 4) + 4].permute(2, 0, 1)
    exact = torch.softmax(q @ k.mT / math.sqrt(16) + bias, -1) @ v
    torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-5)
    (wanted,) = torch.autograd.grad(exact.square().sum(), table)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
    assert graphs == 1


def test_what_is_left_to_eager() -> None:
    """Statistics of lines, and errors: of lengths that the mask is not for, of heads that differ."""

    def with_statistics(q: T, k: T, v: T) -> tuple[T, T]:
        return flex_attention(q, k, v, return_lse=True)  # type: ignore[return-value]

    def longer(q: T, k: T, v: T) -> T:
        return flex_attention(
            q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), block_mask=block(causal)
        )

    def of_groups(q: T, k: T, v: T) -> T:
        return flex_attention(q, k, v)

    inputs = operands()
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(with_statistics)(*inputs), with_statistics(*inputs))
    for function, given in ((longer, inputs), (of_groups, operands(groups=2))):
        with pytest.raises((ValueError, RuntimeError)) as eager:
            function(*given)
        with pytest.raises(eager.type, match=re.escape(str(eager.value))):
            weft.compile(function)(*given)
