"""Carried tensors whose sizes data decides are copied by the host program itself, right like eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64)

pytestmark = pytest.mark.native


def thinned(x: Tensor) -> Tensor:
    while x.numel() > 4:
        x = x[x < x.max()][1:]
    return x


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    last = x
    while x.numel() > 6:
        last = x
        x = x[:, x.amax(0) < x.max()].t()
    return x, last


def its_own_tail(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum() * 0
    x = x[x > 0]
    while x.numel() > 0:
        total = total + x[0]
        x = x[1:]
    return total, x


def marks(x: Tensor) -> tuple[Tensor, Tensor]:
    seen = x > 1
    while seen.numel() > 3 and seen.any():
        keep = x < x.max()
        x, seen = x[keep], seen[keep]
    return x, seen


def exchanged_while_shrinking(x: Tensor) -> tuple[Tensor, Tensor]:
    low, high = x[x < 2], x[x >= 2]
    while low.numel() + high.numel() > 5:
        low, high = high[1:], low[low > low.min()] if low.numel() else low
    return low, high


def _sample(dtype: torch.dtype, *size: int) -> Tensor:
    values = torch.randperm(torch.Size(size).numel(), generator=torch.Generator().manual_seed(3))
    return (values % 11).sub(3).reshape(size).to(dtype)


def _check(program: Callable[..., Any], *inputs: Tensor) -> None:
    compiled = weft.compile(program)
    given = [value.clone() for value in inputs]
    with torch.no_grad():
        found, expected = compiled(*given), program(*inputs)
    found, expected = ((v,) if isinstance(v, Tensor) else v for v in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for one in found:  # writing to a result changes no argument
        if one.untyped_storage().data_ptr() not in [v.untyped_storage().data_ptr() for v in given]:
            one.fill_(1)
    for one, other in zip(given, inputs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with (
        torch.no_grad()
    ):  # what the first call has left in slots and views is no part of the second
        again, expected = compiled(*given), program(*inputs)
    again, expected = ((v,) if isinstance(v, Tensor) else v for v in (again, expected))
    for one, other in zip(again, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_each_dtype(dtype: torch.dtype) -> None:
    _check(thinned, _sample(dtype, 40))


@pytest.mark.parametrize("program", [thinned, its_own_tail, marks, exchanged_while_shrinking])
@pytest.mark.parametrize("length", [7, 300])
def test_of_one_dimension(program: Callable[..., Any], length: int) -> None:
    _check(program, _sample(torch.float32, length))


def test_of_what_lies_otherwise() -> None:
    _check(turned, _sample(torch.float32, 6, 9))


def test_of_many_elements() -> None:
    values = torch.arange(60_000.0) % 7
    _check(thinned, values)


def test_of_none() -> None:
    _check(its_own_tail, -torch.ones(5))


def worklist(todo: Tensor) -> Tensor:
    threshold = todo.sum() * 0
    while todo.numel() > 0:
        threshold = threshold + 0.15
        todo = todo[todo > threshold]
    return threshold


def test_is_made_without_an_operator_of_torch() -> None:
    compiled, x = weft.compile(worklist, fullgraph=True), torch.rand(40)
    with torch.no_grad():
        compiled(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            found = compiled(x)
    names = {event.name for event in profile.events()}
    assert "aten::index" in names or "aten::nonzero" in names
    assert "aten::clone" not in names and "aten::copy_" not in names
    torch.testing.assert_close(found, worklist(x))


def test_of_integers_to_the_last() -> None:
    _check(its_own_tail, _sample(torch.int64, 31))
