"""Branches of little work are computed on both sides; what a side checks it checks only when it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_loop_ir import Branch, Loop, Schedule, all_items

from tests.regions.test_rows_in_place import schedule_of

pytestmark = pytest.mark.native


def branches(schedule: Schedule) -> list[Branch]:
    return [item for item in all_items(schedule.steps) if isinstance(item, Branch)]


def conditions(schedule: Schedule) -> list[Loop]:
    """The loops that compute a condition before their body."""
    return [i for i in all_items(schedule.steps) if isinstance(i, Loop) and i.condition]


def halve_or_triple(x: torch.Tensor) -> Any:
    y = x * 1
    for i in range(30):
        if y > 9:
            y = y / 2 - 0.25
        else:
            y = y * 3 + i
    return y


def with_one_side(x: torch.Tensor) -> Any:
    y, count = x * 1, torch.zeros_like(x)
    for _ in range(30):
        if y > 9:
            y = y - 7
            count = count + 1
        y = y + 2
    return y, count


def branch_in_branch(x: torch.Tensor) -> Any:
    y = x * 1
    for i in range(30):
        if y > 9:
            y = y * 0.5 if y > 20 else y - 3
        elif y < 2:
            y = y + i
        y = y * 1.5
    return y


def rows_at_positions(x: torch.Tensor) -> Any:
    table = torch.arange(12, dtype=x.dtype)
    y = x * 1
    for _ in range(30):
        if y < 11:
            y = y + table[y.long()] * 0.5 + 0.5
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [halve_or_triple, with_one_side, branch_in_branch, rows_at_positions],
    ids=lambda f: f.__name__,
)
def test_both_sides_of_small_branches_run(
    function: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0.0, 1.5, 10.0, 40.0):
        schedule = schedule_of(function, monkeypatch, torch.tensor(start, dtype=dtype))
        assert not branches(schedule)


def test_a_position_out_of_range_is_an_error_where_its_side_is_taken() -> None:
    def looked_up(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x.sum()
        for _ in range(20):
            if y < 100:
                y = y + x[at]
            y = y * 1.5
        return y

    compiled = weft.compile(looked_up)
    x, beyond = torch.ones(4), torch.tensor(7)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x * 50, beyond), looked_up(x * 50, beyond))
        with pytest.raises(IndexError):
            compiled(x, beyond)


def until_settled(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        before = x
        x = (x + x.sin()) * 0.5
        if (x - before).abs().max() < 1e-3:
            break
    return x


def before_the_rest(x: torch.Tensor) -> Any:
    kept = torch.zeros(16, dtype=torch.int64)
    left = x.flatten()
    for k in range(16):
        best = left.argmax()
        if left.max() <= 0.3:
            break
        kept[k] = best
        left = torch.where(left > left[best] * 0.9, torch.zeros_like(left), left)
    return kept, left.clone()  # a view of the input if the first iteration ends the loop


@pytest.mark.parametrize("function", [until_settled, before_the_rest], ids=lambda f: f.__name__)
def test_ends_of_loops_are_no_branches(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale in (0.01, 1.0, 30.0):
        schedule = schedule_of(function, monkeypatch, torch.rand(20, 20) * scale)
        assert not branches(schedule) and not conditions(schedule)


def test_large_sides_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        for i in range(20):
            if y.flatten()[i] > 0:
                y = y * 0.9 + i
            else:
                y = y - y.roll(1, 0)
        return y

    assert branches(schedule_of(function, monkeypatch, torch.randn(20, 20)))
