"""What attention does before it reads its operands: as a schedule that is verified and evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import AttentionKernel, Schedule, evaluate, verify

T = torch.Tensor
QUERIES, KEYS = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 9, 8)


def attend(q: T, k: T, v: T) -> T:
    return torch.softmax(q @ k.mT, -1) @ v


def rotated(x: T, wave: T) -> T:
    first, second = x.chunk(2, -1)
    return x * wave.cos() + torch.cat((-second, first), -1) * wave.sin()


def fused(
    function: Callable[..., Any], inputs: tuple[T, ...], written: dict[int, int]
) -> tuple[Schedule, AttentionKernel]:
    """With everything in its attention that can be; ``written``: results that are new values of inputs."""
    graph = weft_loop_ir.lower(make_fx(function, tracing_mode="fake")(*inputs))
    schedule = weft_loop_ir.schedule(weft_loop_ir.write_back(graph, written))
    schedule = weft_loop_ir.fuse_attention(schedule, lambda attention: True)
    schedule = weft_loop_ir.fuse_prologues(schedule, lambda *_: True, lambda attention: 16)
    verify(schedule)
    (attention,) = (s for s in schedule.steps if isinstance(s, AttentionKernel))
    return schedule, attention


def rotation(q: T, k: T, v: T, wave: T) -> T:
    return attend(rotated(q, wave[:6]), rotated(k, wave), v)


def scales(q: T, k: T, v: T, wave: T) -> T:
    return attend(q.transpose(1, 2).contiguous().transpose(1, 2) * 2, k, v * wave + 1)


def kept(q: T, k: T, v: T, wave: T) -> tuple[T, T]:
    """The rotated key is a result, too."""
    key = rotated(k, wave)
    return attend(rotated(q, wave[:6]), key, v), key


def used_twice(q: T, k: T, v: T, wave: T) -> T:
    return attend(q, (key := k * wave), key)


PRODUCED = {
    "rotation": (rotation, 2),
    "scales": (scales, 2),
    "kept": (kept, 1),
    "twice": (used_twice, 0),
}


@pytest.mark.parametrize("name", PRODUCED)
def test_operands_that_are_computed(name: str) -> None:
    function, count = PRODUCED[name]
    inputs = QUERIES, KEYS, torch.randn(2, 3, 9, 8), torch.randn(9, 8)
    schedule, attention = fused(function, inputs, {})
    assert len(attention.producers) == count
    results, wanted = evaluate(schedule, list(inputs)), function(*inputs)
    for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(got, want)


def put(cache: T, at: T, new: T) -> T:
    result: T = torch.ops.aten.index_put.default(cache, [None, None, at], new)
    return result


def rows(q: T, k: T, v: T, at: T, keys: T, values: T) -> tuple[T, T, T]:
    keys, values = (put(c, at, n) for c, n in ((keys, k), (values, v)))
    return attend(q, keys, values), keys, values


def rows_by_image(q: T, k: T, v: T, at: T, keys: T, values: T) -> tuple[T, T, T]:
    """Each image stores a row at a place of its own."""
    images = torch.arange(2)
    keys = keys.index_put((images[:, None], torch.arange(3), at[:, None]), k[:, :, 0])
    values = values.index_put((images[:, None], torch.arange(3), at[:, None]), v[:, :, 0])
    return attend(q, keys, values), keys, values


def read_before(q: T, k: T, v: T, at: T, keys: T, values: T) -> tuple[T, T, T]:
    """Queries are made of the new keys, in a kernel of its own."""
    keys, values = (put(c, at, n) for c, n in ((keys, k), (values, v)))
    return attend(q + keys.sum(2, keepdim=True), keys, values), keys, values


def one_cache(q: T, k: T, v: T, at: T, keys: T, values: T) -> tuple[T, T, T]:
    keys = put(keys, at, k)
    return attend(q, keys, keys), keys, values


STORED = {"rows": (rows, 2), "by image": (rows_by_image, 2)} | {
    "read before": (read_before, 0), "one cache": (one_cache, 0)
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_rows_that_are_stored(name: str) -> None:
    function, count = STORED[name]
    new = tuple(torch.randn(2, 3, 2, 8) for _ in range(2))
    caches = tuple(torch.randn(2, 3, 9, 8) for _ in range(2))
    inputs = QUERIES, *new, torch.tensor([4, -2]), *caches
    schedule, attention = fused(function, inputs, {1: 4, 2: 5})
    assert len(attention.stored) == count
    given = [t.clone() for t in inputs]
    for got, want in zip(evaluate(schedule, given), function(*inputs), strict=True):
        torch.testing.assert_close(got, want)
    for got, want in zip(given[4:], function(*inputs)[1:], strict=True):
        torch.testing.assert_close(got, want)
