"""Hand-written graphs with branches and loops through every stage, to one native program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_loop_ir import Codegen, Kernel, Loop, Schedule, ScheduleOptions, all_items

pytestmark = pytest.mark.native

hop = torch.ops.higher_order


def while_graph(
    condition: Callable[..., Any], body: Callable[..., Any], carried: Sequence[Any], additional: int
) -> torch.fx.GraphModule:
    """A loop that carries ``carried`` (None for an input) and takes inputs besides; it returns its state."""
    graph = torch.fx.Graph()
    starts = [
        graph.placeholder(f"c{k}") if start is None else start for k, start in enumerate(carried)
    ]
    more = [graph.placeholder(f"a{k}") for k in range(additional)]
    root = {"c": torch.fx.symbolic_trace(condition), "b": torch.fx.symbolic_trace(body)}
    regions = (graph.get_attr("c"), graph.get_attr("b"))
    node = graph.call_function(hop.while_loop, (*regions, tuple(starts), tuple(more)))
    results = [graph.call_function(operator.getitem, (node, k)) for k in range(len(starts))]
    tensors = [r for r, start in zip(results, starts, strict=True) if not isinstance(start, int)]
    graph.output((*tensors, *more))
    return torch.fx.GraphModule(root, graph)


def check(
    module: torch.fx.GraphModule,
    *inputs: torch.Tensor,
    codegen: Codegen | None = None,
    options: ScheduleOptions | None = None,
) -> Schedule:
    """The native program, the reference evaluator and eager agree, effects on inputs included."""
    if codegen is None:
        codegen = CppCodegen(CppOptions(poison_arena=True))
    functional = weft_functionalize.functionalize(module, inputs)
    forward = weft_aot_autograd.trace_inference(functional)
    constants = frozenset(functional.lifted)
    loop_graph = weft_loop_ir.lower(forward.graph_module, constant_inputs=constants)
    weft_loop_ir.verify(loop_graph)
    schedule = weft_loop_ir.schedule(loop_graph, options)
    weft_loop_ir.verify(schedule)
    assert weft_loop_ir.format_schedule(schedule)
    bound = {str(schedule.inputs[i]): t for i, t in functional.lifted.items()}
    program = codegen.compile(schedule, bound)
    theirs = [x.clone() for x in inputs]
    with torch.no_grad():
        wanted = module(*theirs)

    def evaluated(*users: torch.Tensor) -> tuple[Any, ...]:
        every: list[Any] = [functional.lifted.get(i) for i in range(len(functional.inputs))]
        for index, value in zip(functional.user_input_indices, users, strict=True):
            every[index] = value
        return weft_loop_ir.evaluate(schedule, every, use_arena=True)

    for compiled in (program, evaluated, program):
        run = weft_functionalize.wrap(functional, compiled, functional.lifted)
        mine = [x.clone() for x in inputs]
        got = run(*mine)
        for left, right in zip([*got, *mine], [*wanted, *theirs], strict=True):
            torch.testing.assert_close(left, right, equal_nan=True)
    return schedule


def loops(schedule: Schedule) -> list[Loop]:
    return [item for item in all_items(schedule.steps) if isinstance(item, Loop)]


def test_a_loop_that_writes_rows_touches_only_these() -> None:
    def body(i: Any, table: torch.Tensor, matrix: torch.Tensor) -> Any:
        torch.select(table, 0, i + 1).copy_(torch.mv(matrix, torch.select(table, 0, i)) + i)
        return (i + 1,)

    module = while_graph(lambda i, t, m: i < 5, body, [0], 2)
    schedule = check(module, torch.randn(6, 5), torch.randn(5, 5))
    (loop,) = loops(schedule)
    *_, kernel = loop.body
    assert isinstance(kernel, Kernel) and loop.predicate is None
    assert [int(v.size) for v in kernel.outer] == [5]


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e9])
def test_a_loop_that_ends_by_a_value(scale: float) -> None:
    def body(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
        return b + a, torch.mm(a, w) + 1

    module = while_graph(lambda a, b, w: (a * b).sum().abs() < 1e3, body, [None, None], 1)
    check(module, torch.rand(4, 4) * scale, torch.rand(4, 4) * scale, torch.rand(4, 4))


def test_carried_tensors_change_places() -> None:
    module = while_graph(lambda a, b: (a + b).sum() < 100, lambda a, b: (b * 2, a), [None, None], 0)
    check(module, torch.rand(3), torch.rand(3))
    module = while_graph(lambda a, b: a.sum() < 100, lambda a, b: (b, a + b), [None, None], 0)
    check(module, torch.rand(3), torch.rand(3))


def test_state_that_is_read_elsewhere_than_it_is_written() -> None:
    def body(i: Any, a: torch.Tensor) -> Any:
        return i + 1, a.flip(0) + a.cumsum(0)

    check(while_graph(lambda i, a: i < 4, body, [0, None], 0), torch.rand(5))

    def shifted(i: Any, table: torch.Tensor) -> Any:
        torch.select(table, 0, i).copy_(torch.select(table, 0, i - 1) + 1)
        return (i + 1,)

    check(while_graph(lambda i, t: i < 5, shifted, [1], 1), torch.rand(5, 3))


def test_the_old_version_is_kept_where_it_is_read_later() -> None:
    def body(i: Any, total: torch.Tensor, table: torch.Tensor) -> Any:
        before = table.clone()
        torch.select(table, 0, i).mul_(2)
        return i + 1, total + before + table

    check(
        while_graph(lambda i, s, t: i < 4, body, [0, None], 1), torch.rand(4, 3), torch.rand(4, 3)
    )


def test_counting_down_and_by_steps() -> None:
    def body(i: Any, table: torch.Tensor) -> Any:
        torch.select(table, 0, i).add_(i)
        return (i + -2,)

    check(while_graph(lambda i, t: i > -1, body, [7], 1), torch.rand(8, 3))


def test_a_loop_without_iterations_leaves_its_state() -> None:
    module = while_graph(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), [0, None], 0)
    check(module, torch.rand(3))
    module = while_graph(lambda a: a.sum() > 1e9, lambda a: (a * 2,), [None], 0)
    check(module, torch.rand(3))


@pytest.mark.parametrize("holds", [True, False])
def test_branches_inside_a_loop(holds: bool) -> None:
    def condition(i: Any, a: torch.Tensor, flag: torch.Tensor) -> Any:
        return i < 3

    graph = torch.fx.Graph()
    i, a, flag = (graph.placeholder(n) for n in ("i", "a", "flag"))
    root = {
        "t": torch.fx.symbolic_trace(lambda a: (a * 2,)),
        "f": torch.fx.symbolic_trace(lambda a: (torch.mm(a, a.t()).softmax(0),)),
    }
    test = graph.call_method("gt", (graph.call_method("sum", (a,)), 0))
    test = graph.call_method("logical_xor", (test, flag))
    regions = (graph.get_attr("t"), graph.get_attr("f"))
    node = graph.call_function(hop.cond, (test, *regions, (a,)))
    graph.output(
        (
            graph.call_function(operator.add, (i, 1)),
            graph.call_function(operator.getitem, (node, 0)),
        )
    )
    body = torch.fx.GraphModule(root, graph)
    top = torch.fx.Graph()
    a, flag = top.placeholder("a"), top.placeholder("flag")
    regions = (top.get_attr("c"), top.get_attr("b"))
    node = top.call_function(hop.while_loop, (*regions, (0, a), (flag,)))
    top.output((top.call_function(operator.getitem, (node, 1)),))
    module = torch.fx.GraphModule({"c": torch.fx.symbolic_trace(condition), "b": body}, top)
    check(module, torch.randn(3, 3), torch.tensor(holds))


def side_by_side(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.empty(12, 4)
    out[:, 0] = x[:, 1] - y[:, 0]
    out[:, 2] = x[:, 1] + y[:, 2]
    out[:, 1] = x[:, 0] * y[:, 1]
    out[:, 3] = x[:, 0] + y[:, 3]
    return (out.clamp(-1, 1),)


def halves(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.zeros(12, 4)
    out[:6] = y[6:] * x[:6, :1]
    out[6:] = y[:6] + x[6:, :1]
    return (out,)


def overlapping(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.zeros(12, 4)
    out[:, 0:3] = x[:, :1] + y[:, 1:4]
    out[:, 1:4] = x[:, :1] * y[:, 0:3]
    return (out,)


def one_place_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.zeros(12, 4)
    out[:, 1] = x[:, 0] + y[:, 0]
    out[:, 1] = x[:, 1] * y[:, 0]
    return (out,)


def diagonals(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.zeros(12, 12)
    out[:, 0] = x[:, 0] + 1
    out[0, :] = x[:, 0] + 2
    out[:, 11] = x[:, 0] + 3
    return (out,)


@pytest.mark.parametrize(
    "function",
    [side_by_side, halves, overlapping, one_place_twice, diagonals],
    ids=lambda f: f.__name__,
)
def test_writes_to_parts_of_one_buffer(function: Callable[..., Any]) -> None:
    check(torch.fx.symbolic_trace(function), torch.randn(12, 2), torch.randn(12, 4))


def test_writes_side_by_side_are_one_loop() -> None:
    module = torch.fx.symbolic_trace(side_by_side)
    schedule = check(module, torch.randn(12, 2), torch.randn(12, 4))
    kernels = [item for item in all_items(schedule.steps) if isinstance(item, Kernel)]
    assert len(kernels) == 2
