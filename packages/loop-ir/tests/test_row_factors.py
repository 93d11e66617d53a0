"""Rows times a factor of their own sums, and what is stored of rows before these; beside eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import weft_loop_ir
from scheduling import kernels, scheduled
from weft_loop_ir import Schedule, rows_apart
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.contractions import RowFactor, row_factor
from weft_loop_ir.recording import BodyRecorder

T = torch.Tensor


def norm(x: T, w: T) -> T:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def share(x: T, w: T) -> T:
    """Divided by a sum, the number first, and negated."""
    return -(x.exp() / (2 / x.exp().sum(-1, keepdim=True)) * w)


def inverse(x: T, w: T) -> T:
    return x.abs().sum(-1, keepdim=True) / (x * x + 1) / w


def two_sums(x: T, w: T) -> T:
    return w * (x.sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x)


def of_sums(function: Callable[[T, T], T]) -> tuple[Schedule, RowFactor | None]:
    schedule = scheduled(function, [torch.randn(3, 7), torch.rand(7) + 1])
    (kernel,) = kernels(schedule)
    return schedule, row_factor(kernel, schedule.buffers)


@pytest.mark.parametrize("function", [norm, share, inverse, two_sums], ids=lambda f: f.__name__)
def test_rows_times_a_factor(function: Callable[[T, T], T]) -> None:
    schedule, found = of_sums(function)
    (kernel,) = kernels(schedule)
    assert found is not None
    dtypes = {name: buffer.layout.dtype for name, buffer in schedule.buffers.items()}
    dtypes |= {b.name: b.dtype for b in kernel.local_buffers}
    first, second = kernel.stages
    ops = BodyRecorder.over(kernel.all_loops, dtypes.__getitem__)
    element, factor = (Replayer(ops).replay(body) for body in (found.element, found.factor))
    assert element is not None and factor is not None
    (store,) = second.body.stores()
    ops.store(store.buffer, store.index, ops.mul(element, factor))
    stages = (replace(first, body=found.sums), replace(second, body=ops.body()))
    changed = replace(schedule, steps=(replace(kernel, stages=stages),))
    weft_loop_ir.verify(changed)
    inputs = [torch.randn(3, 7), torch.rand(7) + 1]
    (got,) = weft_loop_ir.evaluate(changed, inputs)
    torch.testing.assert_close(got, function(*inputs))


NOT_SCALED: tuple[Callable[[T, T], T], ...] = (
    lambda x, w: x - x.mean(-1, keepdim=True),
    lambda x, w: torch.softmax(x, -1) * w,
    lambda x, w: torch.relu(x * x.sum(-1, keepdim=True)),
    lambda x, w: x * x.amax(-1, keepdim=True),
    lambda x, w: (x * x.sum(-1, keepdim=True)).exp(),
)


@pytest.mark.parametrize("number", range(len(NOT_SCALED)))
def test_rows_without_a_factor(number: int) -> None:
    assert of_sums(NOT_SCALED[number])[1] is None


def test_what_is_stored_before_sums_is_a_kernel() -> None:
    def function(x: T, y: T, w: T) -> tuple[T, T, T]:
        z = x + y
        return z, norm(z, w), (z * x).sum(-1)

    inputs = [torch.randn(3, 7), torch.randn(3, 7), torch.rand(7)]
    schedule = scheduled(function, inputs)
    apart = rows_apart(schedule, None, lambda kernel, around: True)
    assert len(apart.steps) == len(schedule.steps) + 1
    weft_loop_ir.verify(apart)
    for got, want in zip(weft_loop_ir.evaluate(apart, inputs), function(*inputs), strict=True):
        torch.testing.assert_close(got, want)
    assert rows_apart(schedule, None, lambda kernel, around: False) is schedule
