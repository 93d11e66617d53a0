"""Strides of what loops carry and append: those that eager has, whoever asks for them, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from tests.staged_backend import by_operators

from .regions_kept import regions_in

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Tensor]

STEPS: dict[str, Step] = {
    "contiguous": lambda y, w: y.contiguous(),
    "contiguous and more": lambda y, w: y.contiguous() * 0.5,
    "matmul": lambda y, w: torch.mm(y, w),
    "transposed": lambda y, w: y.t() * 0.5,
    "as before": lambda y, w: y * 0.5,
    "expanded": lambda y, w: (y + 1)[:1].expand(3, 3),
}
"""What an iteration makes of a tensor."""


class Held:
    def __init__(self, y: Tensor) -> None:
        self.y = y


def in_a_local(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    y = x.t()
    for _ in range(n):
        y = step(y, w)
    return y, y.stride(), y.is_contiguous()


def in_an_attribute(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    held = Held(x.t())
    for _ in range(n):
        held.y = step(held.y, w)
    return held.y, held.y.stride()


def in_a_list(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    held = [x.t(), x]
    for _ in range(n):
        held[0] = step(held[0], w)
    return held, held[0].stride()


def in_a_cell(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    def advance() -> None:
        nonlocal y
        y = step(y, w)

    y = x.t()
    for _ in range(n):
        advance()
    return y, y.stride()


def appended_from_the_last(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    every = [x.t()]
    for _ in range(n):
        every.append(step(every[-1], w))
    return every, [y.stride() for y in every]


def appended(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    every = []
    for i in range(n + 3):
        every.append(step(x.t() * i, w) + 0)
    return every, every[2].stride(), every[2].t().is_contiguous()


def appended_to_others(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    every = [x, x.t()]
    for i in range(n):
        every.append(step(x.t() * i, w) + 0)
    return every, [y.stride() for y in every]


def until_a_tensor_ends_it(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    y, i = x.t(), torch.tensor(0)
    while i < n:
        y, i = step(y, w), i + 1
    return y, y.stride()


def until_a_tensor_ends_it_asking(step: Step, x: Tensor, w: Tensor, n: int) -> Any:
    y, i, dense = x.t(), torch.tensor(0), 0
    while i < n:
        dense = dense + y.is_contiguous()
        y, i = step(y, w), i + 1
    return y, dense


LOOPS = [
    in_a_local, in_an_attribute, in_a_list, in_a_cell, appended_from_the_last, appended,
    appended_to_others, until_a_tensor_ends_it, until_a_tensor_ends_it_asking,
]  # fmt: skip


def _agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _agree(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("loop", LOOPS)
def test_strides_are_eagers(loop: Callable[..., Any], name: str) -> None:
    step = STEPS[name]
    compiled = weft.compile(loop, backend=by_operators)
    x, w = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64) / 2
    for count in (21, 20, 1, 0):
        _agree(compiled(step, x, w, count), loop(step, x, w, count))


@pytest.mark.parametrize("name", ["contiguous and more", "matmul", "as before"])
@pytest.mark.parametrize("loop", [in_a_local, in_an_attribute, in_a_list, in_a_cell])
def test_loops_stay_where_strides_settle(loop: Callable[..., Any], name: str) -> None:
    x = torch.randn(3, 3)
    assert regions_in(lambda x: loop(STEPS[name], x, x / 2, 20), [(x,)]) == [[1]]


def test_a_loop_that_a_tensor_ends_stays_where_nobody_asks() -> None:
    def inverse(x: Tensor) -> Tensor:
        y = x.t() * 0.1
        while (x @ y - torch.eye(3)).abs().max() > 1e-3:
            y = 2 * y - y @ x @ y
        return y

    x = torch.eye(3) + torch.ones(3, 3) / 9
    assert regions_in(inverse, [(x,)]) == [[1]]


def channels_last(x: Tensor) -> Any:
    every = []
    for i in range(20):
        every.append(x * i)
    return torch.cat(every), torch.stack(every), every[1], every[1].stride()


def test_rows_of_channels_last_images_stay_so() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    _agree(weft.compile(channels_last, backend=by_operators)(x), channels_last(x))


WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "of rows": lambda y: y.unfold(0, 2, 1),
    "of columns": lambda y: y.unfold(1, 3, 2),
    "apart": lambda y: y.unfold(1, 2, 2),
    "by strides": lambda y: torch.as_strided(y, (3, 2), (1, 1)),
    "every second column": lambda y: y[:, ::2],
    "a diagonal": lambda y: y.diagonal(),
}


def window_of_each(view: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    for _ in range(25):
        x = x * 0.9
        y = view(x)
    return y


def window_of_one(view: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x * 2
    for _ in range(25):
        y = view(x)
    return y


def window_of_the_last(view: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    y = view(x)
    while x.sum() > 3:
        x = x * 0.7
        y = view(x)
    return y


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("program", [window_of_each, window_of_one, window_of_the_last])
def test_windows_that_leave_a_loop_lie_as_in_eager(
    program: Callable[..., Tensor], window: str, dynamic: bool
) -> None:
    """No copy lies as what overlaps itself does: such a loop is not kept."""

    def run(x: Tensor) -> Tensor:
        return program(WINDOWS[window], x)

    x = torch.arange(64.0).view(8, 8)
    found, wanted = weft.compile(run, dynamic=dynamic)(x), run(x)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def rows_of_the_last(x: Tensor) -> Tensor:
    y = x * 2
    for _first, other in zip(y, y, strict=True):
        found = other
    for _row in other:
        found = other.t()
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loop_begins_with_what_another_left_with_gaps(dynamic: bool) -> None:
    x = torch.randn(8, 7, 5).permute(2, 1, 0)[1:]
    found, wanted = weft.compile(rows_of_the_last, dynamic=dynamic)(x), rows_of_the_last(x)
    assert found.stride() == wanted.stride() == (28, 4)
    torch.testing.assert_close(found, wanted)


def last_of_positions(x: Tensor) -> Any:
    found = x.nonzero()  # its columns lie one behind the other
    for i in range(20):
        moved = found + i
    return moved, moved.stride()


def list_of_positions(x: Tensor) -> Any:
    every = []
    for i in range(20):
        every.append(x.nonzero() * i)
    return every, torch.stack(every).stride(), every[3].stride()


def columns_of_a_choice(x: Tensor) -> Any:
    every = [row * 2 for row in x[:, x.sum(0) > 1].t()]
    return every, x[:, x.sum(0) > 1].t().stride()


@pytest.mark.parametrize("program", [last_of_positions, list_of_positions, columns_of_a_choice])
def test_layouts_that_data_decides(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program, backend=by_operators)
    for threshold in (3.0, 8.0, 1.0):
        x = (torch.arange(12.0).view(3, 4) > threshold).double()
        _agree(compiled(x), program(x))
