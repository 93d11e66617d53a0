"""Attention: the runtime's kernel beside torch's own and float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16]
INFINITY = float("inf")


def attention(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)


def masked(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask)


def causal(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=True, scale=0.3
    )


SETTINGS: dict[Callable[..., Any], dict[str, Any]] = {causal: {"is_causal": True, "scale": 0.3}}


def by_formula(query: Any, key: Any, value: Any, mask: Any = None, **settings: Any) -> Any:
    """In float64; rows that attend to nothing are 0."""
    scale = settings.get("scale") or query.shape[-1] ** -0.5
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask.double()
    if settings.get("is_causal"):
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -INFINITY)
    sums = torch.logsumexp(scores, -1)
    weights = torch.nan_to_num((scores - sums[..., None]).exp(), nan=0.0)
    return weights @ value.double(), torch.nan_to_num(sums, neginf=0.0)


def heads(batch: int, count: int, length: int, depth: int, dtype: torch.dtype) -> torch.Tensor:
    """As a projection gives them: [batch, heads, length, depth], the heads inside the rows."""
    return torch.randn(batch, length, count, depth).to(dtype).transpose(1, 2)


def check(codegen: CppCodegen, function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    results, eager = program(*inputs), function(*inputs)
    for result, wanted in zip(results, eager, strict=True):
        error = 2e-5 if inputs[0].dtype == torch.float32 else 2e-2
        torch.testing.assert_close(result, wanted, rtol=error, atol=error)
        assert result.squeeze().stride() == wanted.squeeze().stride()
    exact = by_formula(*inputs, **SETTINGS.get(function, {}))
    torch.testing.assert_close(results[0].double(), exact[0], rtol=error, atol=error)
    torch.testing.assert_close(results[1].double(), exact[1], rtol=error, atol=error)
    return program.source


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [16, 80, 256])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (130, 13), (33, 300)])
def test_shapes(
    codegen: CppCodegen, dtype: torch.dtype, depth: int, queries: int, keys: int
) -> None:
    query = heads(2, 3, queries, depth, dtype)
    key, value = (heads(2, 3, keys, depth, dtype) for _ in range(2))
    assert "attend<" in check(codegen, attention, query, key, value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 9, 300])
def test_causal(codegen: CppCodegen, dtype: torch.dtype, length: int) -> None:
    assert "attend<" in check(codegen, causal, *(heads(1, 2, length, 32, dtype) for _ in range(3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_that_share_keys(codegen: CppCodegen, dtype: torch.dtype) -> None:
    query, key, value = (heads(2, n, 20, 32, dtype) for n in (6, 2, 2))
    graph = make_fx(causal, tracing_mode="fake")(query, key, value)
    program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    assert "attend<" in program.source
    wanted = causal(query, *(x.repeat_interleave(3, 1) for x in (key, value)))
    error = 2e-5 if dtype == torch.float32 else 2e-2
    for result, eager, same in zip(
        program(query, key, value), causal(query, key, value), wanted, strict=True
    ):
        torch.testing.assert_close(result, eager, rtol=error, atol=error)
        torch.testing.assert_close(result, same, rtol=error, atol=error)


MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "one for all": lambda: torch.randn(20, 37),
    "of each head": lambda: torch.randn(2, 3, 20, 37),
    "of each batch, expanded": lambda: torch.randn(2, 1, 1, 37).expand(2, 3, 20, 37),
    "of a query": lambda: torch.randn(2, 1, 20, 1),
    "hides keys": lambda: torch.zeros(20, 37).masked_fill(torch.rand(20, 37) < 0.5, -INFINITY),
    "hides all keys of some": lambda: torch.zeros(20, 37).index_fill(
        0, torch.tensor([0, 7]), -INFINITY
    ),
    "lies across": lambda: torch.randn(37, 20).t(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_masks(codegen: CppCodegen, dtype: torch.dtype, name: str) -> None:
    mask = MASKS[name]().to(dtype)
    query, key = heads(2, 3, 20, 32, dtype), heads(2, 3, 37, 32, dtype)
    source = check(codegen, masked, query, key, key * 2, mask)
    assert ("attend<" in source) == (name != "lies across")


def test_numbers_that_are_none(codegen: CppCodegen) -> None:
    """NaN and infinity spread as in torch."""
    for bad in (float("nan"), INFINITY):
        query, key = heads(1, 1, 20, 32, torch.float32), heads(1, 1, 37, 32, torch.float32)
        query[0, 0, 3, 5] = bad
        graph = make_fx(attention, tracing_mode="fake")(query, key, key)
        program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
        for result, wanted in zip(
            program(query, key, key), attention(query, key, key), strict=True
        ):
            torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("architecture", "lanes"), [("x86-64-v3", 8), (None, 4)])
def test_narrower_vectors(
    cache: Path, dtype: torch.dtype, architecture: str | None, lanes: int
) -> None:
    options = CppOptions(cache_directory=cache, architecture=architecture, lanes=lanes)
    query, key = heads(1, 2, 41, 48, dtype), heads(1, 2, 77, 48, dtype)
    assert "attend<" in check(CppCodegen(options), attention, query, key, key + 1)


def test_one_program_for_all_lengths(codegen: CppCodegen) -> None:
    example = [heads(1, 2, 8, 32, torch.float32) for _ in range(2)]
    graph = make_fx(lambda q, k: attention(q, k, k), tracing_mode="symbolic")(*example)
    program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    for batch, queries, keys in ((1, 8, 8), (3, 1, 300), (2, 129, 5)):
        query = heads(batch, 2, queries, 32, torch.float32)
        key = heads(batch, 2, keys, 32, torch.float32)
        results = program(query, key)
        for result, wanted in zip(results, attention(query, key, key), strict=True):
            torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5)


def test_others_stay_in_torch(codegen: CppCodegen) -> None:
    """A depth that vectors do not divide, and float64."""
    assert "attend<" not in check(codegen, attention, *[heads(1, 2, 9, 20, torch.float32)] * 3)
    assert "attend<" not in check(codegen, attention, *[heads(1, 2, 9, 32, torch.float64)] * 3)


@pytest.mark.parametrize("function", [attention, causal])
def test_totals_of_many_keys_lose_no_digits(
    codegen: CppCodegen, function: Callable[..., Any]
) -> None:
    q, k, v = (torch.rand(1, 2, 3001, 32) for _ in range(3))
    graph = make_fx(function, tracing_mode="fake")(q, k, v)
    result, sums = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})(q, k, v)
    wanted, wanted_sums = by_formula(q, k, v, **SETTINGS.get(function, {}))
    torch.testing.assert_close(result.double(), wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.double(), wanted_sums, rtol=1e-6, atol=0)


@pytest.mark.parametrize("differentiated", [False, True])
def test_what_is_written_out_is_the_librarys_without_gradients(differentiated: bool) -> None:
    """Its backward computes scores again, in another order: of scores of 1e5 gradients lose a percent."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT * 0.125, -1) @ v

    given = [torch.randn(1, 2, 512, 64) for _ in range(3)]
    graph = make_fx(attend, tracing_mode="fake")(*given)
    CppCodegen().rewrite_functional(graph, differentiated=differentiated)
    target = torch.ops.aten.scaled_dot_product_attention.default
    calls = graph.graph.find_nodes(op="call_function", target=target)
    assert len(calls) == (0 if differentiated else 1)
