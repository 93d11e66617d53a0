"""Attention of few queries over many keys, which several programs share, beside float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
import weft.registry
from torch.nn import functional as F

from .interpreted import Interpreted

T = torch.Tensor
Mask = Callable[[T, int, int, torch.dtype], T | None]
Write = Callable[[T, T, T], None]


@pytest.fixture
def codegen(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    codegen = Interpreted()
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: codegen)
    return codegen


def nothing(at: T, queries: int, keys: int, dtype: torch.dtype) -> None:
    return None


def until(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    return torch.arange(keys, device=at.device) <= at[:, None]


def from_on(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    return at[:, None] < torch.arange(keys, device=at.device) + 1


def window(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    key = torch.arange(keys, device=at.device)
    return (key <= at[:, None]) & (key > at[:, None] - 70)


def nowhere(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    """The first query sees no key."""
    return torch.arange(keys, device=at.device) < (at - at[0])[:, None]


def _masked(is_seen: T, dtype: torch.dtype) -> T:
    """What hides keys is a number: of queries that see none all keys have the same weight."""
    return torch.zeros_like(is_seen, dtype=dtype).masked_fill(~is_seen, torch.finfo(dtype).min)


def lowest_behind(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    return _masked(until(at, queries, keys, dtype), dtype)


def lowest_everywhere(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    return _masked(until(at - at[0] - 1, queries, keys, dtype), dtype)


def lowest_around(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    return _masked(window(at, queries, keys, dtype), dtype)


def bias(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    numbers = torch.arange(queries * keys, device=at.device).view(queries, keys)
    return (numbers % 13 / 5 - 1).to(dtype)


def of_heads(at: T, queries: int, keys: int, dtype: torch.dtype) -> T:
    """A bias for each image and head, some keys hidden."""
    numbers = torch.arange(2 * 4 * queries * keys, device=at.device).view(2, 4, queries, keys)
    return torch.where(numbers % 7 == 0, -math.inf, numbers % 11 / 4).to(dtype)


MASKS: list[Mask] = [nothing, until, from_on, window, nowhere, bias, of_heads]
MASKS += [lowest_behind, lowest_everywhere, lowest_around]
SIZES = [
    # images, heads, heads of keys, queries, keys, elements of a query, of a value
    (1, 4, 2, 1, 512, 64, 64),
    (2, 4, 4, 1, 333, 80, 80),
    (2, 4, 1, 3, 301, 96, 96),
    (1, 4, 2, 16, 270, 128, 128),
    (1, 2, 1, 1, 1000, 16, 16),
]


def operands(size: tuple[int, ...], dtype: torch.dtype, turned: bool) -> tuple[T, T, T]:
    """With ``turned`` the heads of a token lie together."""
    images, heads, shared, queries, keys, width, of_value = size
    made = []
    for rows, count, n in (
        (queries, heads, width),
        (keys, shared, width),
        (keys, shared, of_value),
    ):
        shape = (images, rows, count, n) if turned else (images, count, rows, n)
        t = torch.randn(shape).to(dtype)
        made.append(t.transpose(1, 2) if turned else t)
    return made[0], made[1], made[2]


def attend(q: T, k: T, v: T, at: T, mask: Mask) -> T:
    found = mask(at, q.shape[2], k.shape[2], q.dtype)
    return -F.scaled_dot_product_attention(q, k, v, found, enable_gqa=q.shape[1] != k.shape[1])


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_beside_float64(
    codegen: Interpreted, size: tuple[int, ...], mask: Mask, turned: bool
) -> None:
    if mask is of_heads and size[:2] != (2, 4):
        pytest.skip("made for two images of four heads")
    q, k, v = operands(size, torch.float16, turned)
    at = torch.linspace(size[4] // 3, size[4] // 2, size[3]).long()
    compiled = weft.compile(attend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        got, eager = compiled(q, k, v, at, mask), attend(q, k, v, at, mask)
        exact = attend(*(t.double() for t in (q, k, v)), at, mask)
    assert got.stride() == eager.stride()
    error, allowed = ((t.double() - exact).abs().max() for t in (got, eager))
    assert error <= 1.5 * allowed + 2e-3, (error, allowed)
    (program,) = codegen.programs
    assert "tl.atomic_add" in program.source
    assert program.extern_count == 0
    bounded = (until, window, nowhere, lowest_behind, lowest_everywhere, lowest_around)
    assert (
        "begin, stop = 0," not in program.source or "tl.minimum(tl.maximum(" in program.source
    ) is (mask in (*bounded, from_on))


def test_what_hides_in_bfloat16(codegen: Interpreted) -> None:
    """As torch gives cuDNN a mask: by the lowest number of float16."""
    q, k, v = operands((1, 4, 2, 1, 300, 64, 64), torch.bfloat16, False)

    def function(q: T, k: T, v: T, at: T) -> T:
        hidden = torch.where(until(at, 1, 300, q.dtype), 0.0, -65504.0).to(q.dtype)
        return -F.scaled_dot_product_attention(q, k, v, hidden, enable_gqa=True)

    compiled = weft.compile(function, fullgraph=True, dynamic=False)
    for place in (0, 100, 299, -1):
        at = torch.tensor([place])
        with torch.no_grad():
            got, want = compiled(q, k, v, at), function(q, k, v, at)
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    assert all("all_see" in program.source for program in codegen.programs)


def test_a_cache_that_is_written(codegen: Interpreted) -> None:
    """Calls one after another, at each place of a cache that has nothing in it at first."""

    def step(x: T, at: T, keys: T, values: T) -> T:
        q, k, v = (t.view(1, 1, -1, 32).transpose(1, 2) for t in x.split((128, 64, 64), -1))
        keys[:, :, at], values[:, :, at] = k, v
        return attend(q, keys, values, at, until)

    compiled = weft.compile(step, fullgraph=True, dynamic=False)
    caches = [[torch.zeros(1, 2, 130, 32).half() for _ in range(2)] for _ in range(2)]
    with torch.no_grad():
        for place in (0, 1, 63, 64, 65, 129):
            x, at = torch.randn(1, 1, 256).half(), torch.tensor([place])
            got, want = compiled(x, at, *caches[0]), step(x, at, *caches[1])
            torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3)
    assert all("tl.atomic_add" in program.source for program in codegen.programs)


def rotated(x: T, wave: T) -> T:
    first, second = x.chunk(2, -1)
    return x * wave.cos() + torch.cat((-second, first), -1) * wave.sin()


def by_index(cache: T, at: T, new: T) -> None:
    cache[:, :, at] = new


def by_copy(cache: T, at: T, new: T) -> None:
    cache.index_copy_(2, at, new)


def by_scatter(cache: T, at: T, new: T) -> None:
    cache.scatter_(2, at[:, None].expand_as(new), new)


def by_slice(cache: T, at: T, new: T) -> None:
    cache[:, :, 70 : 70 + new.shape[2]] = new


def from_the_end(cache: T, at: T, new: T) -> None:
    cache[:, :, at - cache.shape[2]] = new


def by_image(cache: T, at: T, new: T) -> None:
    """Each image at a position of its own, the second one's behind what is seen."""
    images = torch.arange(len(cache), device=cache.device)
    cache[images, :, at[:1] + images * 90] = new[:, :, 0]


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("write", [by_index, by_copy, by_scatter, by_slice, from_the_end, by_image])
def test_rows_of_a_cache_and_rotations(codegen: Interpreted, write: Write, queries: int) -> None:
    """One kernel rotates, writes and attends: each program that reads a row has written it."""
    if write is by_image and queries > 1:
        pytest.skip("of one query")

    def step(q: T, k: T, v: T, at: T, wave: T, keys: T, values: T) -> T:
        write(keys, at, rotated(k, wave))
        write(values, at, v)
        return attend(rotated(q, wave), keys, values, at, until)

    compiled = weft.compile(step, fullgraph=True, dynamic=False)
    caches = [[torch.ones(2, 2, 200, 48).half() for _ in range(2)] for _ in range(2)]
    heads = 4 if queries == 1 else 2
    for place in (0, 64, 100):
        q, k, v = operands((2, heads, 2, queries, queries, 48, 48), torch.float16, True)
        at, wave = torch.arange(queries) + place, torch.randn(queries, 48).half()
        with torch.no_grad():
            got, want = compiled(q, k, v, at, wave, *caches[0]), step(q, k, v, at, wave, *caches[1])
        for one, other in zip((got, *caches[0]), (want, *caches[1]), strict=True):
            torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)
    (program,) = codegen.programs
    assert program.source.count("< own_end)") == (2 if queries == 1 else 0)
    count = program.source.count("@triton.jit")
    assert queries > 1 or count == 4  # cosine, counters, attention, its negative


def _ways() -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    def sdpa(q: T, k: T, v: T, **how: Any) -> T:
        return -F.scaled_dot_product_attention(q, k, v, **how)

    return {
        "few keys": (sdpa, (1, 4, 4, 1, 60, 32, 32)),
        "returned, laid out as the library does": (
            F.scaled_dot_product_attention,
            (1, 4, 4, 1, 512, 32, 32),
        ),
        "many matrices": (sdpa, (40, 4, 4, 1, 512, 16, 16)),
        "many queries": (sdpa, (1, 4, 4, 65, 512, 32, 32)),
        "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), (1, 4, 4, 2, 512, 32, 32)),
    }


@pytest.mark.parametrize("name", _ways())
def test_what_stays_the_librarys(codegen: Interpreted, name: str) -> None:
    function, size = _ways()[name]
    q, k, v = operands(size, torch.float16, False)
    with torch.no_grad():
        got = weft.compile(function, dynamic=False)(q, k, v)
        torch.testing.assert_close(got, function(q, k, v), rtol=4e-3, atol=4e-3)
    assert not any("tl.atomic_add" in program.source for program in codegen.programs)


def test_counters_are_made_once(codegen: Interpreted) -> None:
    q, k, v = operands((1, 4, 4, 1, 256, 16, 16), torch.float16, False)

    def function(q: T, k: T, v: T) -> T:
        for _ in range(3):
            q = -F.scaled_dot_product_attention(q, k, v)
        return q

    with torch.no_grad():
        weft.compile(function, dynamic=False)(q, k, v)
    (program,) = codegen.programs
    assert len(re.findall(r"# counters_", program.source)) == 1
    assert len(re.findall(r"# attention_", program.source)) == 3
