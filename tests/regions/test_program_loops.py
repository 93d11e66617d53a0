"""Loops that data ends and that one program of a GPU runs, through Triton's interpreter."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.fx
import weft

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("Triton is imported already, to compile", allow_module_level=True)

from weft_codegen_triton import TritonCodegen, TritonOptions  # noqa: E402
from weft_codegen_triton.codegen import is_recordable  # noqa: E402
from weft_codegen_triton.program_loops.find_loops import (  # noqa: E402
    ProgramLoop,
    put_loops_into_programs,
)
from weft_loop_ir import Branch, Loop, Schedule, all_items  # noqa: E402

from tests.regions.test_native_regions import check, hop, loops, while_graph  # noqa: E402

CODEGEN = TritonCodegen(TritonOptions(interpret=True))


def jacobi(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> Any:
    """Iterations for ``a x = b`` until no element moves by more than ``tolerance``."""
    diagonal = a.diagonal()
    x, before = torch.zeros_like(b), torch.ones_like(b)
    steps = 0
    while (x - before).abs().max() > tolerance:
        before = x
        x = (b - (a * x).sum(1) + diagonal * x) / diagonal
        steps += 1
    return x, steps


def power_iteration(a: torch.Tensor, tolerance: float) -> torch.Tensor:
    """The direction of the greatest eigenvalue, by products of a matrix and a column."""
    x = torch.ones(a.shape[0], 1, dtype=a.dtype)
    error = torch.ones((), dtype=a.dtype)
    while error.sum() > tolerance:
        following = a @ x
        following = following / following.norm()
        error = (following - x).square()
        x = following
    return x


def sinkhorn(kernel: torch.Tensor, tolerance: float) -> torch.Tensor:
    u = torch.ones(kernel.shape[0])
    v = torch.ones(kernel.shape[1])
    for _ in range(60):
        before = u
        u = 1 / (kernel @ v)
        v = 1 / (kernel.t() @ u)
        if (u - before).abs().max() < tolerance:
            break
    return u[:, None] * kernel * v


def inverse_of_matrix(a: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Newton's iteration with products of square matrices."""
    unit = torch.eye(a.shape[0])
    x = a.t() / (a.abs().sum(0).max() * a.abs().sum(1).max())
    while (unit - a @ x).abs().max() > tolerance:
        x = x @ (2 * unit - a @ x)
    return x


def down_to_one(n: torch.Tensor) -> torch.Tensor:
    """Integers that move together: the greatest number decides for all of them."""
    while n.max() > 1:
        n = torch.where(n.sum() % 2 == 0, n // 2, n.flip(0) - 1)
    return n


def bounded_walk(x: torch.Tensor) -> torch.Tensor:
    """A branch, and a loop of rows, in a loop that data ends."""
    out = torch.zeros(20, x.shape[0])
    for i in range(20):
        if x.sum() > 0:
            x = x - x.flip(0).mean() * 2.5
        else:
            x = x.softmax(0) * 3 - 1
        out[i] = x
        if x.abs().max() > 1e3:
            break
    return out


def dominant(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    a = torch.rand(size, size, generator=generator, dtype=dtype) / size
    return a + 2 * torch.eye(size, dtype=dtype)


def compiled_schedule(
    function: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    *inputs: Any,
    codegen: TritonCodegen = CODEGEN,
    tolerance: float = 1e-4,
) -> Schedule:
    """The program's schedule; the program agrees with eager, twice, and is one graph."""
    schedules: list[Schedule] = []
    compile_ = TritonCodegen.compile

    def compiling(self: TritonCodegen, schedule: Schedule, constants: Any) -> Any:
        schedules.append(put_loops_into_programs(schedule))
        return compile_(self, schedule, constants)

    monkeypatch.setattr(weft.pipeline, "find_codegen", lambda *_: codegen)
    monkeypatch.setattr(TritonCodegen, "compile", compiling)
    program = weft.compile(function, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                program(*inputs), function(*inputs), equal_nan=True, rtol=tolerance, atol=tolerance
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
    codegen = TritonCodegen(TritonOptions(interpret=True))
    codegen.schedule_options = replace(codegen.schedule_options, selected_elements=0)
    schedule = compiled_schedule(bounded_walk, monkeypatch, x, codegen=codegen)
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
    outer, inner = loops(put_loops_into_programs(schedule))
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
