"""Scans as nodes: lowering, fusion and splitting, by the reference evaluator beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import weft_loop_ir
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import Kernel, LoweringOptions, Schedule, ScheduleOptions

T = torch.Tensor
OPTIONS = ScheduleOptions(split_scan_rows=8, split_scan_parts=16, split_varying=True, verify=True)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    splitting = sys.modules["weft_loop_ir.schedule.split_scans"]
    monkeypatch.setattr(splitting, "MIN_PIECE", 16)
    monkeypatch.setattr(splitting, "ALIGNMENT", 4)


def schedule_of(
    function: Callable[..., Any],
    *inputs: T,
    mode: str = "fake",
    options: ScheduleOptions = OPTIONS,
) -> Schedule:
    graph = make_fx(function, tracing_mode=mode)(*inputs)
    graph.graph.eliminate_dead_code()
    loop_graph = weft_loop_ir.lower(graph, options=LoweringOptions(scans=True))
    return weft_loop_ir.schedule(loop_graph, options)


def check(function: Callable[..., Any], *inputs: T) -> Schedule:
    """Evaluate the schedule of ``function`` and compare with eager; gives the schedule."""
    schedule = schedule_of(function, *inputs)
    compare(schedule, function, *inputs)
    return schedule


def compare(schedule: Schedule, function: Callable[..., Any], *inputs: T) -> None:
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
    for got, want in zip(weft_loop_ir.evaluate(schedule, inputs), wanted, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def recurrence(a: T, b: T, c: T, d: T) -> tuple[T, T]:
    return a * c, b * c + d


def scan(combine: Callable[..., Any], *rows: T) -> tuple[T, ...]:
    results: tuple[T, ...] = torch.ops.higher_order.associative_scan(combine, rows, ())
    return results


PROGRAMS: dict[str, Callable[[T, int], Any]] = {
    "sum": lambda x, dim: (x * 2).cumsum(dim) + x,
    "maximum": lambda x, dim: torch.cummax(x, dim),
    "logarithm": lambda x, dim: x.float().logcumsumexp(dim),
    "recurrence": lambda x, dim: scan(recurrence, x.movedim(dim, 0).sin(), x.movedim(dim, 0))[1],
    "where": lambda x, dim: scan(
        lambda a, f, b, g: (torch.where(g, b, a + b), f | g),
        x.movedim(dim, 0),
        x.movedim(dim, 0) > 0.5,
    ),
}


@seed(5)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(sorted(PROGRAMS)),
    size=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    dim=st.integers(0, 1),
)
@pytest.mark.usefixtures("small_pieces")
def test_any_size(name: str, size: list[int], dim: int) -> None:
    x = torch.linspace(-1, 1.5, torch.Size(size).numel(), dtype=torch.float64).view(size)
    dim %= len(size)
    check(lambda x: PROGRAMS[name](x, dim), x)


@pytest.mark.parametrize("first", [(3, 5), (2, 40)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("small_pieces")
def test_one_schedule_for_all_sizes(name: str, first: tuple[int, int]) -> None:
    """Pieces are as long as the first call's; a row has any number of them, and a rest."""

    def function(x: T) -> Any:
        return PROGRAMS[name](x, 1)

    def numbers(*size: int) -> T:
        return torch.linspace(-1, 1.5, torch.Size(size).numel(), dtype=torch.float64).view(size)

    schedule = schedule_of(function, numbers(*first), mode="symbolic")
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    assert not schedule.fallbacks
    assert (len(kernels) > 1) == (first[1] == 40)
    lengths = (1, 2, 7, 8, 16, 17, 31, 97)
    for size in (first, *((rows, length) for rows in (1, 4) for length in lengths)):
        compare(schedule, function, numbers(*size))


def test_the_library_scans_what_depends_on_data() -> None:
    schedule = schedule_of(lambda x: x.nonzero().cumsum(1), torch.randn(9), mode="symbolic")
    assert schedule.fallbacks["aten.cumsum.default"] == 1


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_producers_and_consumers_are_in_its_kernel(dim: int) -> None:
    def program(x: T, y: T) -> T:
        made = scan(recurrence, torch.sigmoid(x).movedim(dim, 0), (x * y).movedim(dim, 0))[1]
        return made.movedim(0, dim).relu() * y

    schedule = check(program, torch.randn(9, 10, 11), torch.randn(9, 10, 11))
    (kernel,) = schedule.steps
    assert isinstance(kernel, Kernel)
    assert len(kernel.writes) == 1


@pytest.mark.usefixtures("small_pieces")
def test_a_long_row_is_read_twice() -> None:
    schedule = check(lambda x: x.cumsum(0), torch.randn(160, dtype=torch.float64))
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    name = schedule.inputs[0]
    assert [name in kernel.reads for kernel in kernels] == [True, False, True]


def test_values_that_nobody_reads_are_left_out() -> None:
    def combine(a: T, b: T, c: T, d: T) -> tuple[T, T]:
        return a + c, b * d

    schedule = check(lambda x, y: scan(combine, x, y)[0], torch.randn(30, 9), torch.randn(30, 9))
    (kernel,) = schedule.steps
    assert isinstance(kernel, Kernel)
    assert list(kernel.reads) == [schedule.inputs[0]]


@pytest.mark.usefixtures("small_pieces")
def test_long_rows_that_stay_whole() -> None:
    """Where elements are cheap to combine, rows are few and lengths are known."""
    options = replace(OPTIONS, whole_scan_elements=64)

    def steps(function: Callable[[T], T], *size: int, mode: str = "fake") -> int:
        x = torch.randn(size)
        schedule = schedule_of(function, x, mode=mode, options=options)
        if mode == "fake":
            compare(schedule, function, x)
        return len(schedule.steps)

    assert steps(lambda x: x.cumsum(0), 200) == steps(lambda x: x.cumsum(1), 3, 64) == 1
    assert steps(lambda x: x.cumsum(0), 60) > 1
    assert steps(lambda x: x.logcumsumexp(0), 200) > 1
    assert steps(lambda x: x.cumsum(1), 2, 200, mode="symbolic") > 1
