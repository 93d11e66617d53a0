"""Loops that data ends, inside kernels: each element goes on until it is done, single numbers as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_loop_ir import Kernel, Schedule, all_items

from tests.regions.test_native_regions import check, loops, while_graph
from tests.regions.test_rows_in_place import schedule_of

pytestmark = pytest.mark.native


def until_kernels(schedule: Schedule) -> list[Kernel]:
    kernels = [item for item in all_items(schedule.steps) if isinstance(item, Kernel)]
    return [k for k in kernels if any(stage.goes_on is not None for stage in k.stages)]


def assert_in_kernel(schedule: Schedule) -> None:
    assert not loops(schedule) and len(until_kernels(schedule)) == 1


# -- elements --------------------------------------------------------------------------------------------


def collatz_graph() -> Any:
    """Steps down to 1: while any is above."""

    def body(n: torch.Tensor, steps: torch.Tensor) -> Any:
        active = n > 1
        following = torch.where(n % 2 == 0, n // 2, 3 * n + 1)
        return torch.where(active, following, n), steps + active

    return while_graph(lambda n, steps: (n > 1).any(), body, [None, None], 0)


@pytest.mark.parametrize(
    ("size", "highest", "dtype"),
    [
        *((size, 97, torch.int64) for size in ((), (1,), (5,), (17, 33), (0,))),
        *(((40,), highest, torch.int64) for highest in (1, 2)),
        *(((40,), 97, dtype) for dtype in (torch.int32, torch.float64)),
    ],
)
def test_counts_of_each_element(size: tuple[int, ...], highest: int, dtype: torch.dtype) -> None:
    n = torch.randint(1, highest + 1, size).to(dtype)
    schedule = check(collatz_graph(), n, torch.zeros(size, dtype=torch.int64))
    if torch.Size(size).numel() > 1:
        (kernel,) = until_kernels(schedule)
        assert not loops(schedule) and kernel.outer


def escapes(c: torch.Tensor, k: torch.Tensor) -> Any:
    """Mandelbrot's set: iterations until a point is away, 60 at most."""
    x, y = torch.zeros_like(c[0]), torch.zeros_like(c[0])
    for _ in range(60):
        inside = x * x + y * y < 4
        if not inside.any():
            break
        x, y = (
            torch.where(inside, x * x - y * y + c[0], x),
            torch.where(inside, 2 * x * y + c[1], y),
        )
        k = k + inside
    return k


def points() -> torch.Tensor:
    """Points that stay for ever or are away soon: on the border the count depends on rounding."""
    radius = torch.tensor([0.0, 0.1, 0.2, 2.5, 3.0, 5.0, 40.0])
    angle = torch.arange(7.0)
    return torch.stack((radius * angle.cos()[:, None], radius * angle.sin()[:, None])).view(2, -1)


def mandelbrot(c: torch.Tensor) -> torch.Tensor:
    return escapes(c, torch.zeros(c.shape[1:], dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [torch.int64, torch.float32], ids=str)
def test_points_that_escape(
    dtype: torch.dtype, count: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_zero(c: torch.Tensor) -> torch.Tensor:
        return escapes(c, torch.zeros(c.shape[1:], dtype=count))

    for c in (points(), points()[:, :7] * 9, points()[:, ::7]):
        assert_in_kernel(schedule_of(from_zero, monkeypatch, c.to(dtype)))


def test_a_count_that_may_be_minus_zero_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    c, k = torch.full((2, 5), 9.0), torch.full((5,), -0.0)
    k[1] = 1.0
    assert not until_kernels(schedule_of(escapes, monkeypatch, c, k))


def newton(a: torch.Tensor) -> torch.Tensor:
    """Square roots, each to its own accuracy."""
    x = a * 0.5 + 1
    settled = torch.zeros_like(a, dtype=torch.bool)
    while not settled.all():
        y = 0.5 * (x + a / x)
        settled = settled | ((x - y).abs() < 1e-5 * y) | y.isnan()
        x = torch.where(settled, x, y)
    return x


def fixed_points(a: torch.Tensor) -> torch.Tensor:
    x, moves = a, torch.ones_like(a, dtype=torch.bool)
    while moves.any():
        y = torch.cos(x)
        x = torch.where(moves, y, x)
        moves = moves & ((torch.cos(x) - x).abs() > 1e-5)
    return x


@pytest.mark.parametrize("function", [newton, fixed_points], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_iterations_to_an_accuracy(
    function: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 40, 300):
        given = torch.rand(size).to(dtype) * 9
        schedule = schedule_of(function, monkeypatch, given)
        assert not loops(schedule)
    special = torch.tensor([float("nan"), 2.0, float("inf"), 0.0, 1e30]).to(dtype)
    if function is newton:
        schedule_of(function, monkeypatch, special)


def doubled(x: torch.Tensor) -> torch.Tensor:
    while (x < 1000).any():
        x = torch.where(x < 1000, x * 2, x)
    return x


def test_lanes_beside_the_last_elements_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (3, 37):  # a lane of zeros would never be done
        assert_in_kernel(schedule_of(doubled, monkeypatch, torch.rand(size) + 0.1))


# -- what has to stay a loop of the host program ----------------------------------------------------------


def all_move_until_the_last(n: torch.Tensor) -> torch.Tensor:
    while (n > 1).any():
        n = n * 0.7
    return n


def to_their_mean(n: torch.Tensor) -> torch.Tensor:
    while (n > 1).any():
        n = torch.where(n > 1, n - n.mean() * 0.5, n)
    return n


def from_neighbours(n: torch.Tensor) -> torch.Tensor:
    while (n > 1).any():
        n = torch.where(n > 1, n * 0.5 + n.flip(0) * 0.1, n)
    return n


def counted_together(n: torch.Tensor) -> Any:
    total = torch.zeros(())
    while (n > 1).any():
        n = torch.where(n > 1, n * 0.5, n)
        total = total + 1
    return n, total


def nan_is_not_below(n: torch.Tensor) -> Any:
    while (n > 1).any():
        n = torch.where(n <= 1, n, n * 0.5)
    return n


@pytest.mark.parametrize(
    "function",
    [
        *(all_move_until_the_last, to_their_mean, from_neighbours, counted_together),
        nan_is_not_below,
    ],
    ids=lambda f: f.__name__,
)
def test_elements_that_depend_on_others(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = torch.rand(30) * 8
    n[3] = float("nan")
    if function is to_their_mean:
        n[3] = 3.0
    schedule = schedule_of(function, monkeypatch, n)
    assert loops(schedule) and not until_kernels(schedule)


# -- single numbers --------------------------------------------------------------------------------------


def greatest_power(x: torch.Tensor, limit: torch.Tensor) -> Any:
    power, count = torch.ones_like(x), 0
    while power * x < limit:
        power = power * x
        count += 1
    return power, count


def bisected(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    while high - low > 1e-4:
        middle = (low + high) * 0.5
        if middle * middle > 2:
            high = middle
        else:
            low = middle
    return low


def hailstones(n: torch.Tensor, out: torch.Tensor) -> Any:
    for k in range(100):
        out[k] = n
        if n == 1:
            break
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return n


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (greatest_power, (2.0, 1000.0)),
        (greatest_power, (2.0, 1.0)),
        (greatest_power, (3.0, 4.0)),
        (bisected, (0.0, 2.0)),
        (bisected, (1.0, 1.0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_single_numbers(
    function: Callable[..., Any],
    inputs: tuple[float, ...],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [torch.tensor(x, dtype=dtype) for x in inputs]
    schedule = schedule_of(function, monkeypatch, *given)
    assert not loops(schedule)


@pytest.mark.parametrize("start", [1, 2, 27])
def test_a_row_for_each_iteration(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_of(hailstones, monkeypatch, torch.tensor(start), torch.zeros(100, dtype=torch.int64))


class Steps:
    def __init__(self) -> None:
        self.count = 0

    def goes_on(self) -> bool:
        self.count += 1
        return self.count < 5


@pytest.mark.parametrize("part", [False, True])
def test_a_test_of_what_a_loop_has_written_is_not_that_of_what_was_there(part: bool) -> None:
    """Contents of a small argument are known, not those of what is computed from it and written to."""

    def numbers() -> Any:
        total = 0
        while True:
            total += yield total

    def program(x: torch.Tensor, by: torch.Tensor, steps: Steps) -> Any:
        given = numbers()
        next(given)
        y = x * 1.0
        for _ in range(25):
            if part:
                y[1:] += by
            else:
                y += by
        while y.sum() > 3 and steps.goes_on():
            given.send(1)
        return y

    results = []
    for function in (program, weft.compile(program)):
        steps = Steps()
        results.append(
            (function(torch.tensor([True, True]), torch.tensor(2.0), steps), steps.count)
        )
    torch.testing.assert_close(results[1], results[0])
