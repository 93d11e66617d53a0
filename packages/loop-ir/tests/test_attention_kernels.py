"""Attention found in schedules: what it is made of, what stays around it, and when it is left apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import (
    AttentionKernel,
    ExternCall,
    Kernel,
    ParallelKernels,
    Schedule,
    ScheduleOptions,
)

T = torch.Tensor
Q, K, V = (torch.randn(2, 3, n, 8) for n in (6, 9, 9))


def scheduled(function: Callable[..., Any], *inputs: T, parallel: int = 0) -> Schedule:
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    options = ScheduleOptions(parallel_kernels=parallel)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph), options)


def fused(schedule: Schedule) -> tuple[Schedule, list[AttentionKernel]]:
    found: list[AttentionKernel] = []

    def accept(attention: AttentionKernel) -> bool:
        found.append(attention)
        return True

    return weft_loop_ir.fuse_attention(schedule, accept), found


def causal_mask(queries: int, keys: int) -> T:
    return torch.arange(keys) <= torch.arange(queries)[:, None]


def attend(q: T, k: T, v: T, bias: T) -> T:
    return torch.softmax(q @ k.mT * 0.3 + bias, -1) @ v


def test_a_mask_of_positions_needs_no_memory() -> None:
    """Every layer reads one mask; it is computed in each, and the kernel that made it is gone."""

    def layers(q: T, k: T, v: T) -> T:
        lowest = torch.finfo(q.dtype).min
        mask = torch.zeros(6, 9).masked_fill(~causal_mask(6, 9), lowest)
        first = attend(q, k, v, mask)
        return attend(first, k, v, mask)

    schedule, found = fused(scheduled(layers, Q, K, V))
    assert len(found) == 2 == len(schedule.steps)
    assert all(set(a.reads) <= {*schedule.inputs, *schedule.buffers} for a in found)
    assert [str(a.bounds.last) for a in found if a.bounds is not None] == ["0", "0"]
    assert schedule.memory.arena_bytes == 2 * 3 * 6 * 8 * 4


def test_a_matmul_is_in_one_attention_only() -> None:
    """The weights of one attention are what another one's scores are made of."""

    def function(q: T, k: T, v: T) -> T:
        weights = torch.softmax(q @ k.mT, -1)
        return torch.softmax(weights @ v, -1) @ k.mT

    schedule = scheduled(function, Q, K, V)
    chained, found = fused(schedule)
    assert len(found) == 1
    (result,) = weft_loop_ir.evaluate(chained, [Q, K, V])
    torch.testing.assert_close(result, function(Q, K, V))


def test_what_only_checks_stays() -> None:
    """Positions are checked, by a kernel that writes nothing, before an input is written."""

    def function(q: T, k: T, v: T, index: T, x: T) -> tuple[T, T, T]:
        return torch.softmax(q @ k.mT, -1) @ v, x[index], x + 1

    inputs = Q, K, V, torch.tensor([1, 3, 2]), torch.randn(4)
    graph = weft_loop_ir.lower(make_fx(function, tracing_mode="fake")(*inputs))
    checked = weft_loop_ir.check_first(weft_loop_ir.write_back(graph, {2: 4}))
    schedule, found = fused(weft_loop_ir.schedule(checked))
    assert len(found) == 1
    assert next(s.writes for s in schedule.steps if isinstance(s, Kernel)) == ()


def test_a_mask_that_is_returned_stays() -> None:
    def function(q: T, k: T, v: T) -> tuple[T, T]:
        mask = torch.where(causal_mask(6, 9), 0.0, -math.inf)
        return attend(q, k, v, mask), mask

    schedule, found = fused(scheduled(function, Q, K, V))
    assert len(found) == 1
    assert len(schedule.steps) == 2


def test_a_bias_that_costs_much_is_loaded() -> None:
    def function(q: T, k: T, v: T) -> T:
        distances = torch.arange(9) - torch.arange(6)[:, None]
        return attend(attend(q, k, v, b := distances.abs().add(1).log()), k, v, b)

    schedule, found = fused(scheduled(function, Q, K, V))
    assert len(found) == 2
    assert len(schedule.steps) == 3


def test_copies_beside_the_softmax() -> None:
    """Keys and values are copied in kernels that run in parallel with others: both are seen through."""

    def function(q: T, k: T, v: T, x: T) -> tuple[T, T, T]:
        keys, values = (t[:, :, None].expand(2, 3, 2, 9, 8).reshape(2, 6, 9, 8) for t in (k, v))
        return attend(q, keys, values, x), x + 1, x * 2

    q, x = torch.randn(2, 6, 6, 8), torch.randn(6, 9)
    before = scheduled(function, q, K, V, x, parallel=8)
    assert any(isinstance(step, ParallelKernels) for step in before.steps)
    schedule, (found,) = fused(before)
    assert {found.key.buffer, found.value.buffer} == {"k_1", "v_1"}
    assert not any(isinstance(step, ExternCall) for step in schedule.steps)
    batch = found.key.batch
    assert [int(found.key.base.subs(batch, n)) // 72 for n in range(12)] == [
        0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5,
    ]  # fmt: skip


def test_a_line_that_sees_none_of_its_keys_has_no_bounds() -> None:
    """Its shares are those of all keys, where what hides scores is finite; none at all where it isn't."""

    def hidden(number: float) -> Callable[..., T]:
        def function(q: T, k: T, v: T) -> T:
            seen = torch.arange(9) <= torch.arange(6)[:, None] - 2
            return torch.softmax((q @ k.mT).masked_fill(~seen, number), -1) @ v

        return function

    _, (finite,) = fused(scheduled(hidden(torch.finfo(torch.float32).min), Q, K, V))
    _, (infinite,) = fused(scheduled(hidden(-math.inf), Q, K, V))
    assert finite.bounds is None
    assert infinite.bounds is not None
    assert infinite.bounds.last == -2


@pytest.mark.parametrize("is_padded", [False, True])
def test_bounds_beside_another_mask(is_padded: bool) -> None:
    """What else may hide keys: a line may have none left, whose shares are those of all keys."""

    def function(q: T, k: T, v: T, seen: T) -> T:
        visible = causal_mask(6, 9) & seen if is_padded else causal_mask(6, 9)
        lowest = torch.finfo(torch.float32).min
        return torch.softmax((q @ k.mT).masked_fill(~visible, lowest), -1) @ v

    _, (found,) = fused(scheduled(function, Q, K, V, torch.ones(9, dtype=torch.bool)))
    assert (found.bounds is None) == is_padded


def test_what_is_accepted() -> None:
    schedule = scheduled(attend, Q, K, V, torch.randn(6, 9))
    assert weft_loop_ir.fuse_attention(schedule, lambda _: False) is schedule
