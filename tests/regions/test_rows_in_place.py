"""A loop that writes a row moves a row: what the kernels in a loop's body store, counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import weft
import weft_loop_ir
from weft_loop_ir import Branch, ExternCall, Kernel, Loop, Schedule, Stage, all_items

pytestmark = pytest.mark.native

ROWS, COLUMNS = 24, 64


def products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], torch.zeros(ROWS, COLUMNS)
    for i in range(ROWS):
        h = torch.tanh(w @ h + x[i])
        out[i] = h
    return out


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0] * 1
    for i in range(ROWS):
        h = torch.tanh(w @ h + x[i])
        x[i] = h
    return h


def of_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, part = x[0] * 1, x[2:]
    for i in range(ROWS - 2):
        h = torch.tanh(w @ h + x[i])
        part[i].mul_(h)
    return h


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], torch.zeros(ROWS, ROWS, COLUMNS)
    for i in range(ROWS):
        for j in range(ROWS):
            h = torch.tanh(w @ h + x[j])
            out[i, j] = h
    return out


def until(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], torch.zeros(ROWS, COLUMNS)
    for i in range(ROWS):
        h = torch.tanh(w @ h + x[i])
        out[i] = h
        if h.sum() > 1e3:
            break
    return out


def cache_of_keys(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, keys = x[0], x.clone()
    for i in range(ROWS):
        keys[i] = w @ h
        h = torch.softmax(keys @ h, 0) @ keys
    return h


def where_positive(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], torch.zeros(ROWS, COLUMNS)
    for i in range(ROWS):
        h = torch.tanh(w @ h + x[i] - 0.5)
        if h.sum() > 0:
            out[i] = h
    return out


def one_row_or_another(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], torch.zeros(ROWS, COLUMNS)
    for i in range(ROWS):
        h = torch.tanh(w @ h + x[i] - 0.5)
        if h[0] > 0:
            out[i] = h
        elif h[1] > 0:
            out[0] = h * 2
    return out


def part_of_a_row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, out = x[0], x.clone()
    for i in range(ROWS):
        h = torch.tanh(w @ h + out[i] - 0.5)
        if h.sum() > 0:
            out[i, 3:9] += h[:6]
    return out


def schedule_of(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *inputs: torch.Tensor
) -> Schedule:
    """The schedule of ``function``, compiled as one graph and compared with eager."""
    found: list[Schedule] = []
    original = weft_loop_ir.schedule

    def noted(*arguments: Any) -> Schedule:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(weft_loop_ir, "schedule", noted)
    weft.reset()
    theirs, mine = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        wanted, got = function(*theirs), weft.compile(function)(*mine)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
    (schedule,) = found
    return schedule


def stored(loop: Loop) -> int:
    """Elements that kernels and calls in one iteration write."""
    total = 0
    for item in all_items(loop.body):
        if isinstance(item, Kernel):
            total += sum(
                math.prod(int(v.size) for v in (*item.outer, *stage.inner) if v.symbol in symbols)
                for stage in item.stages
                for symbols in _stores(stage, item.writes)
            )
        elif isinstance(item, ExternCall):
            total += COLUMNS
    return total


def _stores(stage: Stage, names: tuple[str, ...]) -> list[set[sympy.Symbol]]:
    """The symbols by which each store to a buffer moves."""
    return [s.index.free_symbols for s in stage.body.stores() if s.buffer in names]


@pytest.mark.parametrize(
    "function",
    [
        *(products, of_an_input, of_a_view, nested, until, cache_of_keys),
        *(where_positive, one_row_or_another, part_of_a_row),
    ],
    ids=lambda f: f.__name__,
)
def test_an_iteration_stores_rows(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = torch.rand(ROWS, COLUMNS), torch.rand(COLUMNS, COLUMNS) / COLUMNS
    schedule = schedule_of(function, monkeypatch, x, w)
    loops = [item for item in all_items(schedule.steps) if isinstance(item, Loop)]
    assert loops
    assert stored(loops[-1]) < 10 * COLUMNS < ROWS * COLUMNS


def of_both_neighbours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in range(1, 20):
        for j in range(1, 20):
            y[i, j] = torch.minimum(y[i - 1, j], y[i, j - 1]) + w[i, j] * 0.1
    return y


def read_after_a_loop_inside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone()
    z = y
    for i in range(20):
        h = w @ y[i]
        for j in range(12):
            h = torch.sin(h) + y[j]
            y[i, 2:8] = h[2:8]
        z = z + y
    return y, z


def changing_places(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.clone(), x.clone()
    for i in range(20):
        for j in range(15):
            a[j] = torch.tanh(w @ b[i])
            b[i] = a[j] + 1
        a, b = b, a
    return a, b


def shifted_in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(19):
        x[i + 1, :5] += x[i, 5:10] * w[i, :5]
        x[i, 1:] = x[i, :-1] * 0.5
    return x


def through_a_transpose(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    t = x.t()
    for i in range(20):
        t[i, 1:4] = w[i, 1:4] + t[i, 2:5]
    return x, t


def mirrored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in range(0, 20, 2):
        y[i] = y[i + 1] * 2
    for i in range(19, 0, -1):
        y[i] = y[i] + y[19 - i]
    return y


@pytest.mark.parametrize(
    "function",
    [
        *(of_both_neighbours, read_after_a_loop_inside, changing_places, shifted_in_place),
        *(through_a_transpose, mirrored),
    ],
    ids=lambda f: f.__name__,
)
def test_writes_that_cross_iterations(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_of(function, monkeypatch, torch.rand(20, 20), torch.rand(20, 20) / 20)


def read_after_the_branch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, z = x.clone(), x * 0
    for i in range(1, 20):
        before = y * 1
        if (w @ y[i]).sum() > 0.5:
            y[i] = y[i - 1] * 0.5
        z = z + before - y
    return y, z


def whole_tensors(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = x * 1, w * 2, x + w
    for i in range(20):
        if (w @ a[i]).sum() > 0.5:
            a, b = b, a.flip(0) * 0.9
        else:
            c = c * 0.5 + a
    return a, b, c


def one_state_in_two_results(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x * 1, x * 2
    for i in range(20):
        if (w @ a[i]).sum() > 0.3:
            b = a
            a = a * 0.9
        else:
            b[i] = a[i]
    return a, b


def a_branch_in_a_branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in range(1, 20):
        if (w @ y[i]).sum() > 0.3:
            y[i] = y[i - 1] + 0.1
            if y[i, 3] > 0.5:
                y[0] = y[i] * y[0]
            y[i - 1] = y[0]
    return y


def a_loop_in_a_branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for i in range(1, 20):
        if (w @ y[i]).sum() > 0.3:
            for j in range(12):
                y[i, 2:8] = torch.sin(w @ y[j])[:6]
    return y


@pytest.mark.parametrize(
    "function",
    [
        *(read_after_the_branch, whole_tensors, one_state_in_two_results),
        *(a_branch_in_a_branch, a_loop_in_a_branch),
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("scale", [0.02, 0.1, 1.0])
def test_branches_that_leave_state_where_it_is(
    function: Callable[..., Any], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_of(function, monkeypatch, torch.rand(20, 20), torch.rand(20, 20) * scale)


def test_a_branch_that_keeps_state_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.rand(ROWS, COLUMNS), torch.rand(COLUMNS, COLUMNS) / COLUMNS
    schedule = schedule_of(where_positive, monkeypatch, x, w)
    (branch,) = (item for item in all_items(schedule.steps) if isinstance(item, Branch))
    assert not branch.false_block
    whole = [b for b in schedule.buffers.values() if b.layout.size == (ROWS, COLUMNS)]
    assert len(whole) == 2  # the input and the result
