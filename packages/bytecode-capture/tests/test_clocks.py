"""Clocks that programs read: in one graph around a computation, and honest between several."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

PAUSE = 0.02
CLOCKS = (time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time)


@torch.library.custom_op("weft_clocks::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    """Takes time, of the processor too."""
    end = time.thread_time() + PAUSE
    while time.thread_time() < end:
        pass
    return x * 2


@slow.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def breaks(function: Any, *arguments: Any) -> tuple[Any, list[str]]:
    """What a third call gives, which compiles nothing, and the kinds of breaks of the first."""
    compiled = capture(function)
    kinds = [found.kind for found in compiled(*arguments).breaks]
    compiled(*arguments)
    result = compiled(*arguments)
    assert not result.graphs
    return result.result, kinds


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: clock.__name__)
def test_around_a_computation_there_is_one_graph(clock: Any) -> None:
    def function(x):
        start = clock()
        y = slow(x)
        return y, clock() - start

    x = torch.randn(3)
    (y, elapsed), kinds = breaks(function, x)
    assert torch.equal(y, x * 2) and kinds == []
    assert type(elapsed) is float and elapsed >= PAUSE


def test_texts_and_records_take_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    record: dict[str, Any] = {}

    def function(x):
        record["began"] = True
        first = time.perf_counter()
        total = slow(x).sum()
        second = time.perf_counter()
        print(f"{total.item():.1f} {second - first:.3f}")
        record["elapsed"] = time.perf_counter() - first
        record["first"], record["second"] = first, second
        return total

    _, kinds = breaks(function, torch.ones(3))
    assert kinds == [] and record["began"]
    assert record["first"] + PAUSE <= record["second"] <= record["first"] + record["elapsed"]
    texts = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [text for text, _ in texts] == ["6.0"] * 3
    assert all(float(elapsed) >= PAUSE for _, elapsed in texts)


def test_each_step_of_several_is_measured() -> None:
    def function(xs):
        elapsed = []
        for x in xs:
            start = time.perf_counter()
            slow(x)
            elapsed.append(time.perf_counter() - start)
        return elapsed

    elapsed, _ = breaks(function, [torch.ones(3)] * 4)
    assert len(elapsed) == 4 and min(elapsed) >= PAUSE


def test_decisions_by_the_time_are_the_programs() -> None:
    def function(x, limit):
        start = time.perf_counter()
        y = slow(x)
        if time.perf_counter() - start > limit:
            return y + 1
        return y - 1

    x = torch.ones(3)
    assert torch.equal(breaks(function, x, PAUSE / 2)[0], x * 2 + 1)
    assert torch.equal(breaks(function, x, 1e6)[0], x * 2 - 1)


def test_readings_inside_loops_of_data() -> None:
    def function(x):
        last, ordered = time.perf_counter(), True
        while x.sum() < 100:
            x = x * 2
            now = time.perf_counter()
            ordered, last = ordered and now >= last, now
        return x, ordered

    (x, ordered), _ = breaks(function, torch.ones(3))
    assert torch.equal(x, torch.full((3,), 64.0)) and ordered is True


def test_numbers_of_a_reading_in_tensors() -> None:
    def function(x):
        start = time.perf_counter()
        return x * 2, x.new_tensor(time.perf_counter() - start), x * (start > 0)

    (doubled, elapsed, same), _ = breaks(function, torch.ones(3))
    assert torch.equal(doubled, torch.full((3,), 2.0)) and elapsed >= 0
    assert torch.equal(same, torch.ones(3))
