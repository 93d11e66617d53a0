"""Loops of the host program whose iterations run on several threads, and those whose iterations may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from weft_codegen_cpp import CppCodegen
from weft_loop_ir import (
    Count,
    Loop,
    Schedule,
    all_items,
    evaluate,
    independent_iterations,
    trip_count,
)

from .test_rows_in_place import schedule_of

pytestmark = pytest.mark.native

N = 48


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def growing_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, N, dtype=x.dtype)
    for i in range(N):
        out[i, : i + 1] = torch.softmax(x[i, : i + 1], 0)
    return out


def growing_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, N, N, dtype=x.dtype)
    for i in range(N):
        part = x[:, : i + 1] @ w[: i + 1]
        out[i] = torch.softmax(part, -1) + i
    return out


def convolutions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    images, weights = x.view(N, 1, 6, 8), w.view(N, 3, 1, 4, 4)
    out = torch.zeros(N, 3, 3, 5, dtype=x.dtype)
    for i in range(N):
        out[i] = F.conv2d(images[i : i + 1], weights[i])[0].relu()
    return out


def backwards_by_twos(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.ones(N, N, dtype=x.dtype)
    for i in range(N - 1, 1, -2):
        out[i - 1 : i + 1] = x[i - 1 : i + 1, :i] @ w[:i]
    return out


def of_inputs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(N):
        x[i] = x[i] @ w + torch.softmax(w[: i + 1, 0], 0).sum()
    return x


def loops_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, 16, N, dtype=x.dtype)
    for i in range(N):
        for j in range(16):
            out[i, j] = torch.softmax(x[j, : i + 1], 0) @ w[: i + 1]
    return out


def sides(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, N, dtype=x.dtype)
    for i in range(N):
        if x[i, 0] > 0:
            out[i] = x[i, i:] @ w[i:]
        else:
            out[i] = torch.softmax(w[:, i], 0)
    return out


INDEPENDENT = (
    *(growing_rows, growing_products, convolutions, backwards_by_twos, of_inputs, loops_inside),
    sides,
)


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.ones(N, N, dtype=x.dtype)
    for i in range(1, N):
        out[i] = torch.softmax(out[i - 1, :i] @ w[:i], 0)
    return out


def rows_that_overlap(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N + 1, N, dtype=x.dtype)
    for i in range(N):
        out[i : i + 2] = x[i : i + 1, : i + 1] @ w[: i + 1]
    return out


def grows_into_the_next(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N * N, dtype=x.dtype)
    for i in range(N):
        out[i * 16 : i * 17 + 1] = torch.softmax(x[i, : i + 1], 0)
    return out


def total(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    sum_ = torch.zeros(N, dtype=x.dtype)
    for i in range(N):
        sum_ = sum_ + torch.softmax(x[i, : i + 1] @ w[: i + 1], 0)
    return sum_


def places_of_data(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out, places = torch.zeros(N, N, dtype=x.dtype), (x[:, 0].abs() * 5).long().clamp(0, N - 1)
    for i in range(N):
        out[places[i]] = x[i, : i + 1] @ w[: i + 1]
    return out


DEPENDENT = (chain, rows_that_overlap, grows_into_the_next, total, places_of_data)


def through_python(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, N, dtype=x.dtype)
    for i in range(N):
        out[i, : i + 1] = torch.sort(x[i, : i + 1]).values
    return out


def loops_of(schedule: Schedule) -> list[Loop]:
    return [item for item in all_items(schedule.steps) if isinstance(item, Loop)]


def source_of(schedule: Schedule) -> str:
    return CppCodegen().print(schedule, {})[0].whole


def arguments() -> list[torch.Tensor]:
    return [torch.randn(N, N), torch.randn(N, N)]


def check(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
    """Results and inputs afterwards are eager's in float64."""
    mine, theirs = [x.clone() for x in inputs], [x.double() for x in inputs]
    with torch.no_grad():
        torch.testing.assert_close(
            weft.compile(function)(*mine).double(),
            function(*theirs),
            rtol=1e-4,
            atol=1e-4,
            equal_nan=True,
        )
    mine = [x.double() for x in mine]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


def in_reverse(schedule: Schedule) -> Schedule:
    """``schedule`` with the iterations of its outer loops from the last to the first."""
    steps = []
    for step in schedule.steps:
        if isinstance(step, Loop) and step.count is not None:
            count = step.count
            last = count.start + count.step * (trip_count(count) - 1)
            reverse = Count(count.symbol, last, -count.step, count.start - count.step)
            step = replace(step, count=reverse)
        steps.append(step)
    return replace(schedule, steps=tuple(steps))


def order_shows(schedule: Schedule) -> bool:
    """Whether the reference evaluator gives other results in the reverse order."""
    inputs = dict(zip(("x", "w"), arguments(), strict=True))
    forward, backward = (
        evaluate(each, [inputs[str(name)].clone() for name in each.inputs])
        for each in (schedule, in_reverse(schedule))
    )
    return not all(map(torch.equal, forward, backward))


@pytest.mark.parametrize("function", INDEPENDENT, ids=lambda f: f.__name__)
def test_independent_iterations_share_the_threads(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = schedule_of(function, monkeypatch, *arguments())
    assert any(independent_iterations(loop, schedule) is not None for loop in loops_of(schedule))
    assert "run_loop(" in source_of(schedule)
    assert not order_shows(schedule)
    odd = arguments()
    odd[0][3, 5], odd[1][7] = float("nan"), float("inf")
    check(function, odd)


@pytest.mark.parametrize("function", DEPENDENT, ids=lambda f: f.__name__)
def test_iterations_that_need_each_other_run_in_order(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = schedule_of(function, monkeypatch, *arguments())
    assert loops_of(schedule)
    assert all(independent_iterations(loop, schedule) is None for loop in loops_of(schedule))
    assert "run_loop(" not in source_of(schedule)
    assert order_shows(schedule)
    check(function, arguments())


def test_calls_of_python_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedule_of(through_python, monkeypatch, *arguments())
    assert any(independent_iterations(loop, schedule) is not None for loop in loops_of(schedule))
    assert "run_loop(" not in source_of(schedule)
    check(through_python, arguments())


def test_an_error_in_a_thread_is_eagers() -> None:
    n = 400

    def function(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(n, n)
        for i in range(n):
            out[i] = x[places[i]] + torch.softmax(x[i, : i + 1], 0).sum()
        return out

    x, places = torch.randn(n, n), torch.arange(n).flip(0)
    compiled = weft.compile(function)
    torch.testing.assert_close(compiled(x, places), function(x, places))
    wrong = places.clone()
    wrong[n // 2], wrong[n // 2 + 1], wrong[n - 2] = n + 5, n + 6, n + 7
    for _ in range(5):
        with pytest.raises(IndexError, match=f"index {n + 5} is out of bounds"):
            compiled(x, wrong)
        torch.testing.assert_close(compiled(x, places), function(x, places))
