"""Branches and loops as Triton kernels and a host program in Python, through Triton's interpreter."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.codegen import is_recordable
from weft_loop_ir import Schedule

from tests.regions import test_loops_in_kernels as programs
from tests.regions import test_loops_until as until
from tests.regions.test_native_regions import check, hop, loops, while_graph
from tests.triton_interpreter import require_interpreter

require_interpreter()

CODEGEN = TritonCodegen(TritonOptions(interpret=True))


def on_gpu(module: torch.fx.GraphModule, *inputs: torch.Tensor) -> Schedule:
    """The schedule of ``module``, whose Triton program agrees with eager and the evaluator."""
    return check(module, *inputs, codegen=CODEGEN, options=CODEGEN.schedule_options)


@pytest.mark.parametrize("trips", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_state_of_each_element_is_kept_in_registers(trips: int, dtype: torch.dtype) -> None:
    def body(i: Any, x: torch.Tensor) -> Any:
        return i + 1, torch.where(x > 3, x - 3, x * 2 + i)

    schedule = on_gpu(programs.counted(body, trips, [None]), torch.arange(-70, 71).to(dtype))
    assert not loops(schedule)


@pytest.mark.parametrize("shape", [(), (5,), (3, 50)])
def test_states_and_rows(shape: tuple[int, ...]) -> None:
    two = programs.counted(programs.two_states, 6, [None, None])
    on_gpu(two, torch.randn(shape), torch.randn(shape))
    schedule = on_gpu(
        programs.counted(programs.trajectory, 6, [None], 1),
        *(torch.randn(shape), torch.zeros(6, *shape)),
    )
    assert not loops(schedule)


def test_the_row_before_is_read_in_the_kernel() -> None:
    def body(i: Any, table: torch.Tensor) -> Any:
        torch.select(table, 0, i).add_(torch.select(table, 0, i - 1) * 0.5)
        return (i + 1,)

    assert not loops(on_gpu(programs.counted(body, 9, [], 1, start=1), torch.randn(9, 21)))


def test_state_is_rounded_in_each_iteration() -> None:
    x = torch.randn(40).bfloat16()  # the interpreter cuts off what bfloat16 rounds
    schedule = on_gpu(programs.counted(lambda i, x: (i + 1, x * 0.5), 5, [None]), x)
    assert not loops(schedule)


def test_flags_are_state() -> None:
    def body(i: Any, flag: torch.Tensor, x: torch.Tensor) -> Any:
        return i + 1, flag ^ (x > i)

    schedule = on_gpu(programs.counted(body, 5, [None], 1), torch.zeros(40) > 0, torch.randn(40))
    assert not loops(schedule)


@pytest.mark.parametrize(
    "body", [programs.row_by_row, programs.softmax_of_rows, programs.in_place, programs.columns]
)
def test_rows_of_one_buffer(body: Callable[..., Any]) -> None:
    schedule = on_gpu(programs.counted(body, 9, [], 2), torch.randn(9, 9), torch.randn(9, 9))
    assert is_recordable(schedule)


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e9])
def test_a_loop_that_ends_by_a_value(scale: float) -> None:
    def body(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
        return b + a, torch.mm(a, w) + 1

    module = while_graph(lambda a, b, w: (a * b).sum().abs() < 1e3, body, [None, None], 1)
    inputs = (torch.rand(4, 4) * scale, torch.rand(4, 4) * scale, torch.rand(4, 4))
    assert not is_recordable(on_gpu(module, *inputs))


def test_products_between_rows() -> None:
    def body(i: Any, h: torch.Tensor, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.tanh(torch.mm(h, w) + torch.select(x, 0, i))
        torch.select(out, 0, i).copy_(h)
        return i + 1, h

    module = programs.counted(body, 5, [None], 3)
    schedule = on_gpu(
        module, torch.randn(2, 4), torch.zeros(5, 2, 4), torch.randn(5, 2, 4), torch.randn(4, 4)
    )
    assert loops(schedule) and is_recordable(schedule)


def test_calls_that_allocate_in_a_loop() -> None:
    def body(i: Any, x: torch.Tensor) -> Any:
        values, order = x.sort(0, descending=True)
        return i + 1, values.cumsum(0) * 0.1 + order

    assert loops(on_gpu(programs.counted(body, 4, [None]), torch.randn(6)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sides_of_a_branch(sign: float) -> None:
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    root = {
        "t": torch.fx.symbolic_trace(lambda a: (a * 2, torch.mm(a, a))),
        "f": torch.fx.symbolic_trace(lambda a: (a.softmax(0), a.sort(1).values)),
    }
    test = graph.call_method("gt", (graph.call_method("sum", (a,)), 0))
    node = graph.call_function(hop.cond, (test, graph.get_attr("t"), graph.get_attr("f"), (a,)))
    graph.output(tuple(graph.call_function(operator.getitem, (node, k)) for k in range(2)))
    schedule = on_gpu(torch.fx.GraphModule(root, graph), torch.rand(3, 3) * sign)
    assert not is_recordable(schedule)


@pytest.mark.parametrize("size", [(), (5,), (3, 400)])
@pytest.mark.parametrize("highest", [1, 60])
def test_elements_go_on_until_they_are_done(size: tuple[int, ...], highest: int) -> None:
    n = torch.randint(1, highest + 1, size)
    schedule = on_gpu(until.collatz_graph(), n, torch.zeros(size, dtype=torch.int64))
    until.assert_in_kernel(schedule)
    assert is_recordable(schedule)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (until.greatest_power, (torch.tensor(2.0), torch.tensor(900.0))),
        (until.bisected, (torch.tensor(0.0), torch.tensor(2.0))),
        (until.newton, (torch.rand(300) * 9,)),
        (until.mandelbrot, (until.points(),)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_captured_loops_go_into_kernels(
    function: Callable[..., Any], inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: CODEGEN)
    until.assert_in_kernel(until.schedule_of(function, monkeypatch, *inputs))
