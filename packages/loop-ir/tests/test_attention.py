"""Attention that is written out: one call of the library's where it is that; results and gradients stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

aten = torch.ops.aten

B, H, L, S, E = 2, 4, 6, 9, 8
INF = math.inf
LOWEST = torch.finfo(torch.float32).min

Attend = Callable[..., torch.Tensor]
T = torch.Tensor


def graph_of(attend: Attend, *inputs: T) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(lambda *values: attend(*values), tracing_mode="fake")(*inputs)


def rewritten(
    attend: Attend, *inputs: T, differentiated: bool = False
) -> tuple[torch.fx.GraphModule, int]:
    """The graph of ``attend`` after the pass, and what the pass gives."""
    graph = graph_of(attend, *inputs)
    count = weft_loop_ir.use_library_attention(
        graph.graph, (inputs[0].dtype,), differentiated=differentiated
    )
    graph.graph.lint()
    graph.recompile()
    return graph, count


def heads(length: int, count: int = H, width: int = E) -> T:
    """``[B, count, length, width]``, as a projection gives it."""
    return torch.randn(B, length, count, width).transpose(1, 2)


def shares(scores: T) -> T:
    return scores.softmax(-1)


def bert(q: T, k: T, v: T, m: T | None = None) -> T:
    scores = q @ k.transpose(2, 3) * 0.3
    if m is not None:
        scores = scores + m
    return (shares(scores) @ v).transpose(1, 2).contiguous()


def causal(q: T, k: T, v: T) -> T:
    k, v = k[:, :, :L], v[:, :, :L]
    seen = torch.ones(L, L, dtype=torch.bool).tril()
    return shares((q @ k.mT / math.sqrt(E)).masked_fill(~seen, -INF)) @ v


def gpt2(q: T, k: T, v: T) -> T:
    """The causal mask of a buffer; a number that hides is a tensor, as is the divisor."""
    scores = q @ k.transpose(-1, -2) / torch.full([], E**0.5, dtype=q.dtype)
    seen = torch.ones(S, S, dtype=torch.bool).tril()[S - L :]
    scores = torch.where(seen, scores, torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype))
    return (shares(scores).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def wide(x: T) -> torch.dtype:
    """That of softmaxes in models, float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def llama(q: T, k: T, v: T) -> T:
    k, v = (x[:, :2, None].expand(B, 2, 2, S, E).reshape(B, 4, S, E) for x in (k, v))
    return F.softmax(q @ k.transpose(2, 3) * 0.2, dim=-1, dtype=wide(q)).to(q.dtype) @ v


def llama_with_mask(q: T, k: T, v: T, m: T) -> T:
    k, v = (x[:, :2, None].expand(B, 2, 2, S, E).reshape(B, 4, S, E) for x in (k, v))
    scores = q @ k.transpose(2, 3) * 0.2 + m
    return F.softmax(scores, dim=-1, dtype=wide(q)).to(q.dtype) @ v


def bloom(q: T, k: T, v: T, m: T) -> T:
    """Batches of heads in one dimension; the bias is added by the product."""
    q, k, v = (x.reshape(B * H, -1, E) for x in (q, k, v))
    scores = torch.baddbmm(m, q, k.mT, beta=1, alpha=0.25)
    return torch.bmm(shares(scores.view(B, H, L, S)).view(B * H, L, S), v)


def t5(q: T, k: T, v: T, table: T, m: T) -> T:
    position = (torch.arange(S)[None] - torch.arange(L)[:, None]).abs()
    bias = F.embedding(position, table).permute(2, 0, 1)[None] + m
    return shares(q @ k.transpose(3, 2) + bias) @ v


def scaled_query(q: T, k: T, v: T) -> T:
    return torch.einsum("bhls,bhse->bhle", shares(torch.einsum("bhle,bhse->bhls", q * 0.5, k)), v)


def one_head(q: T, k: T, v: T) -> T:
    """Three dimensions, no heads; every query sees the same, expanded, keys."""
    return torch.bmm(shares(torch.bmm(q[:, 0], k[:, 0].mT) * 2), v[:, 0])


def two_masks(q: T, k: T, v: T, m: T, seen: T) -> T:
    return shares((q @ k.mT + m).masked_fill(seen.logical_not(), -INF)) @ v


def row(*hidden: int) -> T:
    """A mask to add, ``[B, 1, L, S]``: minus infinity for all keys in some lines, for some in others."""
    mask = torch.randn(B, 1, L, S)
    mask[:, :, 1, :4] = -INF
    for line in hidden:
        mask[0, :, line] = -INF
    return mask


def padding(*hidden: int) -> T:
    """What transformers' models make of padded sequences: numbers as low as there are."""
    mask = torch.zeros(B, 1, L, S)
    mask[0, :, :, 5:] = LOWEST
    for line in hidden:
        mask[1, :, line] = LOWEST
    return mask


def seen(*hidden: int) -> T:
    return row(*hidden) != -INF


MATCHES: dict[str, tuple[Attend, tuple[T, ...]]] = {
    "bert": (bert, ()),
    "bert, masked": (bert, (row(),)),
    "bert, hidden lines": (bert, (row(2, 3),)),
    "bert, padded": (bert, (padding(),)),
    "bert, padded lines": (bert, (padding(0, 2),)),
    "a mask for each head": (bert, (torch.randn(1, H, 1, S),)),
    "a mask without batch": (bert, (torch.randn(L, S),)),
    "a row": (bert, (torch.randn(S),)),
    "infinite scores": (bert, (torch.full((B, 1, L, S), INF),)),
    "NaN in a mask": (bert, (row().masked_fill(torch.rand(B, 1, L, S) < 0.1, math.nan),)),
    "causal": (causal, ()),
    "gpt2": (gpt2, ()),
    "llama": (llama, ()),
    "llama, masked": (llama_with_mask, (padding(1),)),
    "bloom": (bloom, (torch.randn(B * H, 1, S),)),
    "bloom, one bias": (bloom, (torch.randn(1, L, S),)),
    "t5": (t5, (torch.randn(S, H), padding(2))),
    "scaled query": (scaled_query, ()),
    "one head": (one_head, ()),
    "two masks": (two_masks, (row(), seen())),
    "two masks, hidden lines": (two_masks, (row(2), seen(4))),
}


def copies(tensors: tuple[T, ...]) -> list[T]:
    return [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]


def keywords(graph: torch.fx.GraphModule) -> dict[str, object]:
    """What the one call in ``graph`` is given by keyword, and whether it has a mask."""
    target = aten.scaled_dot_product_attention.default
    (call,) = graph.graph.find_nodes(op="call_function", target=target)
    return {**call.kwargs, "masked": call.args[3] is not None}


NOT_DIFFERENTIATED = ("two masks", "two masks, hidden lines")
"""Scores that a bool mask hides get no gradients, NaN neither, unlike those that a mask is added to."""


@pytest.mark.parametrize("name", MATCHES)
def test_what_is_attention(name: str) -> None:
    attend, masks = MATCHES[name]
    inputs = heads(L), heads(S), heads(S), *masks
    graph, count = rewritten(attend, *inputs)
    assert count == 1
    result, wanted = graph(*inputs), attend(*inputs)
    torch.testing.assert_close(result, wanted, equal_nan=True)
    assert result.stride() == wanted.stride()


@pytest.mark.parametrize("name", MATCHES)
def test_gradients(name: str) -> None:
    attend, masks = MATCHES[name]
    inputs = [
        t.double() if t.is_floating_point() else t for t in (heads(L), heads(S), heads(S), *masks)
    ]
    graph, count = rewritten(attend, *inputs, differentiated=True)
    assert count == (name not in NOT_DIFFERENTIATED)
    own, expected = copies(inputs), copies(inputs)
    result, wanted = graph(*own), attend(*expected)
    weights = torch.randn_like(wanted)
    result.backward(weights)
    wanted.backward(weights)
    for mine, its in zip(own, expected, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_known_masks_are_dropped() -> None:
    """Causal ones, of the lowest numbers too, and those that hide nothing."""

    def attend(q: T, k: T, v: T) -> T:
        mask = torch.where(torch.ones(L, L, dtype=torch.bool).tril(), 0.0, LOWEST)
        mask = mask[None, None].expand(B, 1, L, L) + torch.zeros(L)
        return shares(q @ k.mT + mask) @ v

    for function, length, causal_call in (
        (attend, L, True),
        (causal, S, True),
        (lambda q, k, v: bert(q, k, v, torch.zeros(1, 1, L, L)), L, None),
    ):
        graph, _ = rewritten(function, heads(L), heads(length), heads(length))
        assert not keywords(graph)["masked"]
        assert keywords(graph).get("is_causal") is causal_call


def test_a_causal_mask_of_other_lines_stays() -> None:
    assert keywords(rewritten(gpt2, heads(L), heads(S), heads(S))[0])["masked"]


def test_repeated_heads_are_not_copied() -> None:
    graph, _ = rewritten(llama, heads(L), heads(S), heads(S))
    assert keywords(graph)["enable_gqa"] is True
    (call,) = graph.graph.find_nodes(
        op="call_function", target=aten.scaled_dot_product_attention.default
    )
    assert [n.meta["val"].shape[1] for n in call.args[:3]] == [4, 2, 2]


def test_operands_are_read_where_they_lie() -> None:
    graph, _ = rewritten(bert, heads(L), heads(S), heads(S))
    (call,) = graph.graph.find_nodes(
        op="call_function", target=aten.scaled_dot_product_attention.default
    )
    assert [n.op for n in call.args[:3]] == ["placeholder"] * 3


@pytest.mark.parametrize(
    ("mask", "corrected"),
    [(padding(), True), (torch.rand(B, 1, 1, S) < 2, False)],
    ids=["of an input", "proven to be finite"],
)
def test_lines_that_may_be_hidden_are_corrected(mask: T, corrected: bool) -> None:
    def attend(q: T, k: T, v: T, m: T) -> T:
        return bert(q, k, v, m if corrected else torch.where(m, 0.0, LOWEST))

    graph, count = rewritten(attend, heads(L), heads(S), heads(S), mask)
    assert count == 1
    assert (aten.amax.default in [n.target for n in graph.graph.nodes]) is corrected


def read_twice(q: T, k: T, v: T) -> tuple[T, T]:
    weights = shares(q @ k.mT)
    return weights @ v, weights


def scores_read_twice(q: T, k: T, v: T) -> tuple[T, T]:
    scores = q @ k.mT
    return shares(scores) @ v, scores.amax(-1)


def capped(q: T, k: T, v: T) -> T:
    return shares(torch.tanh(q @ k.mT / 5) * 5) @ v


def scaled_mask(q: T, k: T, v: T, m: T) -> T:
    return shares((q @ k.mT + m) * 0.5) @ v


def dropped(q: T, k: T, v: T) -> T:
    return F.dropout(shares(q @ k.mT), 0.5) @ v


def over_queries(q: T, k: T, v: T) -> T:
    return (q @ k.mT).softmax(-2) @ v


def negative(q: T, k: T, v: T) -> T:
    return shares(q @ k.mT * -1.0) @ v


def almost_hidden(q: T, k: T, v: T, m: T) -> T:
    return shares((q @ k.mT).masked_fill(m < 0, -1e4)) @ v


def other_width(q: T, k: T, v: T) -> T:
    return shares(q @ k.mT) @ v[..., :4]


def from_the_right(q: T, k: T, v: T) -> T:
    return v.mT @ shares(k @ q.mT)


OTHERS: dict[str, tuple[Attend, tuple[T, ...]]] = {
    "shares are read": (read_twice, ()),
    "scores are read": (scores_read_twice, ()),
    "a cap": (capped, ()),
    "a mask that is scaled": (scaled_mask, (row(),)),
    "dropout": (dropped, ()),
    "a softmax over queries": (over_queries, ()),
    "a negative scale": (negative, ()),
    "almost hidden": (almost_hidden, (row(),)),
    "values of another width": (other_width, ()),
    "shares on the right": (from_the_right, ()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not(name: str) -> None:
    attend, masks = OTHERS[name]
    inputs = heads(L), heads(S), heads(S), *masks
    graph, count = rewritten(attend, *inputs)
    assert count == 0
    results = []
    for function in (graph, attend):
        torch.manual_seed(0)
        results.append(function(*inputs))
    torch.testing.assert_close(*results, equal_nan=True)


def test_few_scores_and_other_dtypes_stay() -> None:
    inputs = heads(L), heads(S), heads(S)
    for options in ({"min_scores": L * S + 1}, {"dtypes": (torch.float16,)}):
        graph = graph_of(bert, *inputs)
        assert weft_loop_ir.use_library_attention(graph.graph, differentiated=False, **options) == 0


@pytest.mark.parametrize(("least", "count"), [(L * S, 1), (L * S + 1, 0)])
def test_few_scores_with_a_mask_stay(least: int, count: int) -> None:
    graph = graph_of(bert, heads(L), heads(S), heads(S), row())
    assert count == weft_loop_ir.use_library_attention(
        graph.graph, min_masked_scores=least, differentiated=False
    )
    for attend in (lambda q, k, v: bert(q, k, v), causal):
        graph = graph_of(attend, heads(L), heads(S), heads(S))
        assert (
            weft_loop_ir.use_library_attention(
                graph.graph, min_masked_scores=99, differentiated=False
            )
            == 1
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["bert", "bert, padded", "bert, hidden lines", "llama", "llama, masked", "bloom", "t5"]
)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    attend, masks = MATCHES[name]
    lowest = torch.finfo(dtype).min
    masks = tuple(m.masked_fill(m == LOWEST, lowest) for m in masks)
    inputs = [t.to(dtype) for t in (heads(L), heads(S), heads(S), *masks)]
    graph, count = rewritten(attend, *inputs)
    result, eager, exact = graph(*inputs), attend(*inputs), attend(*(t.double() for t in inputs))
    if name == "t5":
        assert dtype == torch.bfloat16 or count == 1
    else:
        assert count == 1
    error, own = ((y.double() - exact).nan_to_num().norm() for y in (result, eager))
    assert torch.equal(result.isnan(), exact.isnan())
    assert error <= 1.5 * own + 1e-3


def test_a_wide_mask_of_half_operands_stays() -> None:
    """The library takes a mask in the operands' dtype only."""

    def attend(q: T, k: T, v: T, m: T) -> T:
        return shares((q @ k.mT).float() + m).half() @ v

    inputs = [t.half() for t in (heads(L), heads(S), heads(S))]
    assert rewritten(attend, *inputs, padding())[1] == 0


def test_a_finite_number_in_the_place_of_scores_in_float16_stays() -> None:
    def attend(q: T, k: T, v: T, m: T) -> T:
        return shares((q @ k.mT).masked_fill(m, torch.finfo(torch.float16).min)) @ v

    inputs = [t.half() for t in (heads(L), heads(S), heads(S))]
    assert rewritten(attend, *inputs, seen(2))[1] == 0
