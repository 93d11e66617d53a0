"""Flags of branches and loops are made on the CPU, and moved to the device of what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_codegen_triton.codegen import is_recordable
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.program_loops.find_loops import put_loops_into_programs
from weft_codegen_triton.recordable import tail_length
from weft_loop_ir import Loop, all_items, copied_results, devices_of

from tests.elsewhere import META, schedule_elsewhere
from tests.regions.iterative_programs import counted_tensor, rows_up_to_a_counter, steps_taken


def settle(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        before = x
        x = (x + x.sin()) * 0.5
        if (x - before).abs().max() < 1e-6:
            break
    return x


def first_row_that_is_large(x: torch.Tensor) -> Any:
    for i in range(x.shape[0]):
        if x[i].sum() > 3:
            return x[i] * i
    return x.sum(0)


def until_small(x: torch.Tensor) -> torch.Tensor:
    while x.abs().max() > 1:
        if x.sum() < 0:
            x = -x
        x = x * 0.5
    return x


@pytest.mark.parametrize("function", [settle, until_small, rows_up_to_a_counter])
def test_flags_lie_where_everything_else_does(function: Callable[..., Any]) -> None:
    schedule = schedule_elsewhere(function)
    assert {buffer.layout.device for buffer in schedule.buffers.values()} == {META}


def test_results_of_a_loop_lie_where_everything_else_does() -> None:
    """What stands for a result until one is returned is made on the device of the capture."""
    schedule = schedule_elsewhere(first_row_that_is_large, "meta")
    assert {buffer.layout.device for buffer in schedule.buffers.values()} == {META}


def halved_a_number_of_times(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    n = 0
    while x.abs().max() > 0.01 and n < 60:
        x = x * 0.5
        n += 1
    return x, n


def halved_until_small(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    n = 0
    while True:
        x = x * 0.5
        n += 1
        if x.abs().max() < 0.01 or n >= 60:
            break
    return x, n


def settled_values(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    before = float("inf")
    for _ in range(60):
        x = x * 0.9
        now = x.mean().item()
        if abs(now - before) < 1e-3:
            break
        before = now
    return x, before


def first_small(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    n = 0
    for _ in range(40):
        n += 1
        x = x * 0.5
        if x.sum() < 0:
            continue
        if x.max() < 0.1:
            return x, n
    return x + 1, n


@pytest.mark.parametrize(
    "function", [halved_a_number_of_times, halved_until_small, settled_values, first_small]
)
def test_numbers_and_flags_of_branches_lie_on_one_device(function: Callable[..., Any]) -> None:
    """Some are made on the CPU, others computed of tensors elsewhere."""
    schedule = schedule_elsewhere(function, "meta")
    assert devices_of(schedule) == {META}
    assert any(isinstance(step, Loop) for step in all_items(schedule.steps))


@pytest.mark.parametrize(("function", "returned"), [(steps_taken, 2), (counted_tensor, 1)])
def test_counters_that_are_returned_are_copied_back(
    function: Callable[..., Any], returned: int
) -> None:
    schedule = schedule_elsewhere(function)
    assert devices_of(schedule) == {META}
    copies = copied_results(schedule)
    assert len(copies) == returned
    assert {schedule.buffers[name].layout.device.type for name in copies} == {"cpu"}
    schedule = put_loops_into_programs(schedule, REFERENCE)
    assert is_recordable(schedule) and tail_length(schedule, ()) == returned
