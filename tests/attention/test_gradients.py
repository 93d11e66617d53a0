"""Gradients of attention as Triton kernels, through Triton's interpreter, beside float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft
import weft.registry
import weft_guards
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .interpreted import Interpreted, TritonProgram

T = torch.Tensor
Score = Callable[..., T]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}


@pytest.fixture
def codegen(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    made = Interpreted(fuse_attention=True)
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: made)
    return made


def positions(scores: T) -> tuple[T, T]:
    return torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])


def plain(scores: T) -> T:
    return scores


def causal(scores: T) -> T:
    queries, keys = positions(scores)
    return scores.masked_fill(keys > queries, -math.inf)


def causal_at_the_end(scores: T) -> T:
    queries, keys = positions(scores)
    offset = scores.shape[-1] - scores.shape[-2]
    return torch.where(keys <= queries + offset, scores, -math.inf)


def window(scores: T) -> T:
    queries, keys = positions(scores)
    return torch.where((keys <= queries) & (keys > queries - 20), scores, -math.inf)


def soft_cap(scores: T) -> T:
    return causal(torch.tanh(scores / 5) * 5)


def with_bias(scores: T, bias: T) -> T:
    return scores + bias


def alibi(scores: T, slopes: T) -> T:
    queries, keys = positions(scores)
    return causal(scores + slopes[:, None, None].to(scores.dtype) / 16 * (keys - queries))


def relative_bias(scores: T, table: T) -> T:
    queries, keys = positions(scores)
    places = (keys - queries).clamp(-7, 8) + 7
    return scores + table[places].permute(2, 0, 1)


def documents(scores: T, document: T) -> T:
    same = document[:, None, :, None] == document[:, None, None, :]
    return causal(torch.where(same[..., : scores.shape[-2], :], scores, -math.inf))


def lengths(dtype: torch.dtype) -> tuple[int, int]:
    """Of queries and keys: more than one tile, which has 32 of each in float32 and 64 in 16 bits."""
    return (40, 45) if dtype == torch.float32 else (70, 75)


def own_documents(keys: int) -> tuple[T, ...]:
    return (torch.arange(keys).div(20, rounding_mode="floor").repeat(2, 1),)


SCORES: dict[str, tuple[Score, Callable[[torch.dtype], tuple[T, ...]]]] = {
    "plain": (plain, lambda dtype: ()),
    "causal": (causal, lambda dtype: ()),
    "causal at the end": (causal_at_the_end, lambda dtype: ()),
    "window": (window, lambda dtype: ()),
    "soft cap": (soft_cap, lambda dtype: ()),
    "a bias of each head": (with_bias, lambda dtype: (torch.randn(2, *lengths(dtype)).to(dtype),)),
    "a bias of each image": (
        with_bias,
        lambda dtype: (torch.randn(2, 1, *lengths(dtype)).to(dtype),),
    ),
    "a bias of all": (with_bias, lambda dtype: (torch.randn(2, 2, *lengths(dtype)).to(dtype),)),
    "a bias for all": (with_bias, lambda dtype: (torch.randn(lengths(dtype)).to(dtype),)),
    "ALiBi": (alibi, lambda dtype: (torch.tensor([8, 2]),)),
    "relative bias": (relative_bias, lambda dtype: (torch.randn(16, 2).to(dtype),)),
    "documents": (documents, lambda dtype: own_documents(lengths(dtype)[1])),
}
"""What is done to scores, and what it reads."""


def attention(change: Score) -> Callable[..., T]:
    def function(q: T, k: T, v: T, *others: T) -> T:
        scores = change(q @ k.transpose(-1, -2) * 0.2, *others)
        return torch.softmax(scores, -1) @ v

    return function


def operands(dtype: torch.dtype, *queries_and_keys: int) -> tuple[T, ...]:
    """Two images of two heads: Triton's interpreter goes through each."""
    queries, keys = queries_and_keys or lengths(dtype)
    sizes = ((2, 2, queries, 24), (2, 2, keys, 24), (2, 2, keys, 40))
    return tuple(torch.randn(size).to(dtype) for size in sizes)


def gradients(function: Callable[..., T], inputs: tuple[T, ...], tangent: T) -> tuple[T, ...]:
    """The result, and the gradients of the floating inputs."""
    inputs = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs)
    result = function(*inputs)
    differentiated = [t for t in inputs if t.requires_grad]
    return result, *torch.autograd.grad(result, differentiated, tangent.to(result.dtype))


def compare(codegen: Interpreted, function: Callable[..., T], *inputs: T) -> TritonProgram:
    """Compare with float64, scaled by the largest of each result; gives the program of backward."""
    dtype = inputs[0].dtype
    tangent = torch.randn_like(function(*inputs))
    wide = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    exact = gradients(function, wide, tangent)
    found = gradients(weft.compile(function, fullgraph=True), inputs, tangent)
    for got, want in zip(found, exact, strict=True):
        scale = want.nan_to_num(0.0).abs().max().clamp(min=1.0)
        torch.testing.assert_close(
            got.double() / scale, want / scale, rtol=0, atol=TOLERANCE[dtype], equal_nan=True
        )
        assert got.dtype == dtype
    forward, backward = codegen.programs
    assert forward.extern_count == 0
    return backward


def each_in_both_widths() -> Iterator[Any]:
    """Every change in float32 and in one of the types of 16 bits, whose kernels are alike; two in both.

    Every run has each in one of them, by turns.
    """
    halves = itertools.cycle([torch.bfloat16, torch.float16])
    for place, name in enumerate(SCORES):
        for number, dtype in enumerate((next(halves), torch.float32)):
            yield pytest.param(name, dtype, marks=() if number == place % 2 else pytest.mark.slow)
    yield from (("plain", torch.float16), ("documents", torch.bfloat16))


@pytest.mark.parametrize(("name", "dtype"), list(each_in_both_widths()), ids=str)
def test_scores_that_are_changed(codegen: Interpreted, name: str, dtype: torch.dtype) -> None:
    change, others = SCORES[name]
    backward = compare(codegen, attention(change), *operands(dtype), *others(dtype))
    assert backward.extern_count == 0


def test_flexible_attention_is_one_kernel(codegen: Interpreted) -> None:
    """What ``flex_attention`` stands for, with a mask of documents and slopes of heads."""
    document, slopes = torch.arange(75) // 20, torch.tensor([0.5, 0.125]).half()

    def same(b: T, h: T, query: T, key: T) -> T:
        return (document[query] == document[key]) & (key <= query)

    def sloped(score: T, b: T, h: T, query: T, key: T) -> T:
        return score + slopes[h] * (key - query)

    mask = create_block_mask(same, None, None, 75, 75, device="cpu")

    def function(q: T, k: T, v: T) -> T:
        return flex_attention(q, k, v, score_mod=sloped, block_mask=mask)

    inputs = operands(torch.float16, 75, 75)
    with torch.no_grad():
        result, expected = weft.compile(function)(*inputs), function(*inputs)
    torch.testing.assert_close(result, expected, rtol=4e-3, atol=4e-3)
    (program,) = codegen.programs
    assert (program.kernel_count, program.extern_count) == (1, 0)
    assert "begin = " in program.source


SIZES = [(1, 40), (33, 17), (64, 130)]


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", ["plain", "causal at the end", "window"])
def test_lengths(codegen: Interpreted, name: str, queries: int, keys: int) -> None:
    """Of a few or odd numbers; where there are more queries than keys, some see none: NaN as in eager."""
    change, _ = SCORES[name]
    compare(codegen, attention(change), *operands(torch.float32, queries, keys))


def test_groups_of_heads(codegen: Interpreted) -> None:
    """Each head of keys and values is that of two heads of queries, whose gradients are added up."""

    def function(q: T, k: T, v: T) -> T:
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        return attention(causal)(q, k, v)

    q, k, v = operands(torch.float32)
    compare(codegen, function, torch.cat([q, q.flip(1)], 1), k, v)


def test_lines_without_a_key(codegen: Interpreted) -> None:
    """Their results, and what takes part in them, are NaN as in eager."""
    bias = torch.zeros(lengths(torch.float32))
    bias[3] = -math.inf
    bias[9, 4:] = -math.inf

    def function(q: T, k: T, v: T) -> T:
        return attention(with_bias)(q, k, v, bias)

    compare(codegen, function, *operands(torch.float32))


def test_nothing_as_large_as_the_scores_is_kept(codegen: Interpreted) -> None:
    inputs = tuple(t.requires_grad_() for t in operands(torch.float32, 96, 96))
    kept: list[int] = []

    def pack(tensor: T) -> T:
        kept.append(tensor.numel())
        return tensor

    weft_guards.note_faithful_hook(pack)  # compiled code is to run under it
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        weft.compile(attention(soft_cap))(*inputs)
    assert kept and max(kept) < 2 * 2 * 96 * 96


def test_dropout_stays_apart(codegen: Interpreted) -> None:
    def function(q: T, k: T, v: T) -> T:
        shares = torch.softmax(soft_cap(q @ k.mT), -1)
        return torch.nn.functional.dropout(shares, 0.5) @ v

    inputs = tuple(t.requires_grad_() for t in operands(torch.float32, 20, 20))
    result = weft.compile(function)(*inputs)
    gradients = torch.autograd.grad(result.sum(), inputs)
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert codegen.programs[0].extern_count >= 2  # the products, and what draws seeds
