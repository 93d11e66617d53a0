"""Loops that data ends and that one program of a GPU runs, through Triton's interpreter."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.fx
import weft
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.codegen import is_recordable
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.program_loops.find_loops import (
    ProgramLoop,
    put_loops_into_programs,
)
from weft_loop_ir import Branch, Loop, Schedule, all_items

from tests.regions import iterative_programs
from tests.regions.iterative_programs import (
    bounded_walk,
    dominant,
    down_to_one,
    inverse_of_matrix,
    jacobi,
    power_iteration,
    sinkhorn,
)
from tests.regions.test_native_regions import check, hop, loops, while_graph
from tests.triton_interpreter import require_interpreter

require_interpreter()

CODEGEN = TritonCodegen(TritonOptions(interpret=True))


def compiled_schedule(
    function: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    *inputs: Any,
    tolerance: float = 1e-4,
) -> Schedule:
    """The program's schedule; the program agrees with eager, twice, and is one graph."""
    schedules: list[Schedule] = []
    compile_ = TritonCodegen.compile

    def compiling(self: TritonCodegen, schedule: Schedule, constants: Any) -> Any:
        schedules.append(put_loops_into_programs(schedule, REFERENCE))
        return compile_(self, schedule, constants)

    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: CODEGEN)
    monkeypatch.setattr(TritonCodegen, "compile", compiling)
    program = weft.compile(function, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            theirs, mine = copy.deepcopy(inputs), copy.deepcopy(inputs)
            wanted, got = function(*theirs), program(*mine)
            for left, right in ((got, wanted), (mine, theirs)):
                torch.testing.assert_close(
                    left, right, equal_nan=True, rtol=tolerance, atol=tolerance
                )
    (schedule,) = schedules
    return schedule


def assert_one_program(schedule: Schedule) -> None:
    (loop,) = [s for s in all_items(schedule.steps) if isinstance(s, Loop) and s.predicate]
    assert isinstance(loop, ProgramLoop)
    assert is_recordable(schedule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [2.0, 0.6, 1e-5])  # no iteration, one or two, many
@pytest.mark.parametrize("size", [1, 5, 70])
def test_jacobi(
    size: int, tolerance: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = dominant(size, dtype)
    b = torch.linspace(-1, 1, size, dtype=dtype)
    assert_one_program(compiled_schedule(jacobi, monkeypatch, a, b, tolerance))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_condition_of_nan_ends_the_loop(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    b = torch.ones(6)
    b[3] = value
    assert_one_program(compiled_schedule(jacobi, monkeypatch, dominant(6), b, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_a_column(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    a = (dominant(40) + dominant(40).t()).to(dtype)
    error, tolerance = (1e-6, 1e-4) if dtype is torch.float32 else (1e-2, 0.05)
    inputs = (a, error)  # the interpreter cuts off what bfloat16 rounds
    assert_one_program(
        compiled_schedule(power_iteration, monkeypatch, *inputs, tolerance=tolerance)
    )


def test_rows_and_columns_of_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_program(compiled_schedule(sinkhorn, monkeypatch, dominant(33).exp(), 1e-6))


def test_products_of_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_program(compiled_schedule(inverse_of_matrix, monkeypatch, dominant(20), 1e-4))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("highest", [1, 50])
def test_integers(highest: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    n = torch.randint(1, highest + 1, (90,), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_one_program(compiled_schedule(down_to_one, monkeypatch, n))


@pytest.mark.parametrize("scale", [0.1, 1e3, -1.0])
def test_branches_inside(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-0.5, 1, 24) * scale
    options = replace(CODEGEN.schedule_options, selected_elements=0)
    monkeypatch.setattr(TritonCodegen, "schedule_options", options)
    schedule = compiled_schedule(bounded_walk, monkeypatch, x)
    assert any(isinstance(item, Branch) for item in all_items(schedule.steps))
    assert is_recordable(schedule)


def nested_graph() -> torch.fx.GraphModule:
    """A loop that data ends in one that data ends; the inner condition is two nodes."""

    def inner_condition(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x.flip(0) * y).sum() < 50

    inner = while_graph(inner_condition, lambda x, y: (x * 1.5, y * 1.1), [None, None], 0)

    def body(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.flip(0) * 0.1 + 0.2, y * 0.01

    outer = while_graph(lambda x, y: y.sum() > 0.5, body, [None, None], 0)
    graph = outer.b.graph
    output = graph.output_node()
    outer.b.add_submodule("c", inner.c)
    outer.b.add_submodule("b", inner.b)
    with graph.inserting_before(output):
        regions = (graph.get_attr("c"), graph.get_attr("b"))
        node = graph.call_function(hop.while_loop, (*regions, tuple(output.args[0]), ()))
        results = tuple(graph.call_function(operator.getitem, (node, k)) for k in range(2))
    output.args = (results,)
    outer.b.recompile()
    return outer


@pytest.mark.parametrize("start", [0.1, 20.0])
def test_loops_in_loops(start: float) -> None:
    inputs = (torch.rand(9) * start, torch.rand(9))
    schedule = check(nested_graph(), *inputs, codegen=CODEGEN, options=CODEGEN.schedule_options)
    outer, inner = loops(put_loops_into_programs(schedule, REFERENCE))
    assert isinstance(outer, ProgramLoop) and inner.condition


def test_much_work_stays_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = compiled_schedule(jacobi, monkeypatch, dominant(700), torch.ones(700), 0.7)
    assert not any(isinstance(step, ProgramLoop) for step in schedule.steps)


def test_calls_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_sorted_sum(x: torch.Tensor) -> torch.Tensor:
        while x.sum() > 1:
            x = x.sort(0).values * 0.5
        return x

    schedule = compiled_schedule(until_sorted_sum, monkeypatch, torch.rand(9))
    assert not any(isinstance(step, ProgramLoop) for step in schedule.steps)


@pytest.mark.parametrize("numbers", [(3, 20, 1), (2, 118, 6)])
@pytest.mark.parametrize("name", ["accumulated", "written", "until", "prefixes"])
def test_ranges(name: str, numbers: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(120, 4, generator=torch.Generator().manual_seed(1))
    compiled_schedule(getattr(iterative_programs, name), monkeypatch, x, *numbers)


@pytest.mark.parametrize("name", ["steps_taken", "counted_tensor", "rows_up_to_a_counter"])
def test_counters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(9, 7, generator=torch.Generator().manual_seed(1)) * 40
    assert_one_program(compiled_schedule(getattr(iterative_programs, name), monkeypatch, x))
