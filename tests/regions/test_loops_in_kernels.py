"""Counted loops that leave the host program: into a kernel, or over all iterations at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_loop_ir import ExternCall, Kernel, Schedule, all_items

from tests.regions.test_native_regions import check, loops, while_graph

pytestmark = pytest.mark.native

Body = Callable[..., Any]


def kernels(schedule: Schedule) -> list[Kernel]:
    return [item for item in all_items(schedule.steps) if isinstance(item, Kernel)]


def has_loop(kernel: Kernel) -> bool:
    return any(stage.is_sequential for stage in kernel.stages)


def counted(body: Body, trips: int, carried: list[Any], additional: int = 0, start: int = 0) -> Any:
    """A loop that counts from ``start`` below ``trips``."""
    parameters = len(carried) + additional
    names = ", ".join(f"p{k}" for k in range(parameters))
    condition = eval(f"lambda i, {names}: i < {trips}")
    return while_graph(condition, body, [start, *carried], additional)


# -- state in registers ----------------------------------------------------------------------------------


def smoothed(i: Any, x: torch.Tensor) -> Any:
    return i + 1, x * 0.75 + i


def two_states(i: Any, x: torch.Tensor, v: torch.Tensor) -> Any:
    return i + 1, x + v * 0.1, v - x * 0.1


def trajectory(i: Any, x: torch.Tensor, out: torch.Tensor) -> Any:
    x = x - 0.1 * x * x
    torch.select(out, 0, i).copy_(x)
    return i + 1, x


def column_trajectory(i: Any, x: torch.Tensor, out: torch.Tensor) -> Any:
    x = x * 0.5 + 1
    torch.select(out, x.dim(), i).copy_(x)
    return i + 1, x


@pytest.mark.parametrize("trips", [0, 1, 2, 40])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32]
)
def test_state_of_each_element_is_kept_in_the_kernel(trips: int, dtype: torch.dtype) -> None:
    def body(i: Any, x: torch.Tensor) -> Any:
        return i + 1, torch.where(x > 3, x - 3, x * 2 + i)

    x = torch.arange(-70, 71).to(dtype)
    schedule = check(counted(body, trips, [None]), x)
    assert not loops(schedule)
    assert not trips or any(map(has_loop, kernels(schedule)))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (3, 50), (2, 0, 3), (1300,)])
@pytest.mark.parametrize("body", [smoothed, two_states])
def test_shapes_of_state(shape: tuple[int, ...], body: Body) -> None:
    states = 1 if body is smoothed else 2
    inputs = [torch.randn(shape) for _ in range(states)]
    schedule = check(counted(body, 30, [None] * states), *inputs)
    assert not loops(schedule)


def test_nothing_finite_is_kept_apart() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e38])
    check(counted(lambda i, x: (i + 1, torch.tanh(x) * 2 - x / 3), 20, [None]), x)


@pytest.mark.parametrize("shape", [(7,), (3, 40)])
def test_rows_are_written_beside_the_state(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    schedule = check(counted(trajectory, 25, [None], 1), x, torch.zeros(25, *shape))
    (kernel,) = [k for k in kernels(schedule) if has_loop(k)]
    assert not loops(schedule) and len(kernel.local_buffers) == 1
    schedule = check(counted(column_trajectory, 25, [None], 1), x, torch.zeros(*shape, 25))
    assert not loops(schedule)


def test_the_row_before_is_read_in_the_kernel() -> None:
    def body(i: Any, table: torch.Tensor) -> Any:
        torch.select(table, 0, i).add_(torch.select(table, 0, i - 1) * 0.5)
        return (i + 1,)

    schedule = check(counted(body, 30, [], 1, start=1), torch.randn(30, 21))
    assert not loops(schedule)


def test_a_window_of_rows_before() -> None:
    def body(i: Any, table: torch.Tensor) -> Any:
        before = torch.select(table, 0, i - 1) - torch.select(table, 0, i - 3)
        torch.select(table, 0, i).mul_(before)
        return (i + 1,)

    assert not loops(check(counted(body, 12, [], 1, start=3), torch.randn(12, 4)))


def test_counting_down_in_the_kernel() -> None:
    def body(i: Any, total: torch.Tensor, table: torch.Tensor) -> Any:
        return i + -3, total * 0.5 + torch.select(table, 0, i)

    module = while_graph(lambda i, s, t: i > -1, body, [10, None], 1)
    assert not loops(check(module, torch.randn(9), torch.randn(11, 9)))


def test_neighbours_are_not_crossed() -> None:
    def mixed(i: Any, x: torch.Tensor) -> Any:
        return i + 1, x.flip(0) * 0.5 + i

    def summed(i: Any, x: torch.Tensor) -> Any:
        return i + 1, x / x.sum()

    def spread(i: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, x + y, y * 0.5

    assert loops(check(counted(mixed, 9, [None]), torch.randn(8)))
    assert loops(check(counted(summed, 9, [None]), torch.rand(8)))
    assert loops(check(counted(spread, 9, [None, None]), torch.randn(3, 8), torch.randn(8)))


def test_one_row_that_several_iterations_write() -> None:
    def body(i: Any, table: torch.Tensor) -> Any:
        torch.select(table, 0, 2).add_(torch.select(table, 0, i))
        return (i + 1,)

    check(counted(body, 6, [], 1), torch.randn(6, 5))


# -- all iterations at once ------------------------------------------------------------------------------


def row_by_row(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    torch.select(out, 0, i).copy_(torch.sin(torch.select(x, 0, i)) + i)
    return (i + 1,)


def softmax_of_rows(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    torch.select(out, 0, i).copy_(torch.softmax(torch.select(x, 0, i), -1))
    return (i + 1,)


def in_place(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    torch.select(out, 0, i).mul_(torch.select(x, 0, i).max())
    return (i + 1,)


def columns(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    torch.select(out, 1, i).copy_(torch.select(x, 1, i).cumsum(0) * 2)
    return (i + 1,)


def halves_of_rows(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    row = torch.select(out, 0, i)
    row[:3].copy_(torch.select(x, 0, i)[2:5])
    row[3:].add_(1)
    return (i + 1,)


def gathered(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
    order = torch.select(x, 0, i).argsort()
    torch.select(out, 0, i).copy_(torch.select(x, 0, 0)[order % 4])
    return (i + 1,)


@pytest.mark.parametrize("trips", [0, 1, 9])
@pytest.mark.parametrize("body", [row_by_row, softmax_of_rows, in_place, columns, halves_of_rows])
def test_independent_iterations_are_one_kernel(body: Body, trips: int) -> None:
    schedule = check(counted(body, trips, [], 2), torch.randn(9, 9), torch.randn(9, 9))
    assert body is columns or not loops(schedule)  # a running total is a call


def test_calls_keep_their_loop() -> None:
    assert loops(check(counted(gathered, 9, [], 2), torch.randn(9, 9), torch.randn(9, 9)))


def test_iterations_that_meet_run_one_after_another() -> None:
    def overlapping(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
        out.narrow(0, i, 2).add_(torch.select(x, 0, i))
        return (i + 1,)

    def shifted(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
        torch.select(out, 0, i).copy_(torch.select(out, 0, 8 - i) + torch.select(x, 0, i))
        return (i + 1,)

    for body in (overlapping, shifted):
        check(counted(body, 8, [], 2), torch.randn(9, 4), torch.randn(9, 4))


def test_what_an_iteration_makes_for_itself_has_a_row_each() -> None:
    def body(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
        row = torch.select(x, 0, i)
        weights = torch.softmax(row[:, None] * row, 1)
        torch.select(out, 0, i).copy_((weights * row.flip(0)).sum(1) + weights.max())
        return (i + 1,)

    schedule = check(counted(body, 9, [], 2), torch.randn(9, 7), torch.randn(9, 7))
    assert not loops(schedule)


def test_every_second_row_counting_down() -> None:
    def body(i: Any, out: torch.Tensor) -> Any:
        torch.select(out, 0, i).mul_(i)
        return (i + -2,)

    assert not loops(check(while_graph(lambda i, t: i > 0, body, [8], 1), torch.randn(9, 3)))


def test_fills_that_iterations_overwrite_are_not_stored() -> None:
    def in_part(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
        torch.select(out, 0, i)[:4].copy_(torch.select(x, 0, i)[1:])
        return (i + 1,)

    for body, kept in ((row_by_row, 1), (in_part, 2)):
        module = counted(body, 9, [], 2)
        (given,) = (n for n in module.graph.find_nodes(op="placeholder") if n.name == "a0")
        with module.graph.inserting_before(given):
            made = module.graph.call_function(torch.zeros, ((9, 5),))
        given.replace_all_uses_with(made)
        module.graph.erase_node(given)
        module.recompile()
        schedule = check(module, torch.randn(9, 5))
        assert len(kernels(schedule)) == kept and not loops(schedule)


def test_loops_in_loops() -> None:
    def nested(i: Any, out: torch.Tensor, x: torch.Tensor) -> Any:
        h = torch.select(x, 0, i) * 2
        for j in range(5):
            h = h * 0.5 + torch.select(x, 0, j)
        torch.select(out, 0, i).copy_(h)
        return (i + 1,)

    schedule = check(counted(nested, 9, [], 2), torch.randn(9, 6), torch.randn(9, 6))
    assert not loops(schedule)


# -- before the loop -------------------------------------------------------------------------------------


def steps_in_loops(schedule: Schedule, kind: type) -> int:
    return sum(isinstance(step, kind) for loop in loops(schedule) for step in all_items(loop.body))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("start", [0, 2])
def test_products_of_rows_are_one_product_before_the_loop(rows: int, start: int) -> None:
    def body(i: Any, h: torch.Tensor, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
        return i + 1, torch.tanh(torch.mm(torch.select(x, 0, i), w) + torch.mm(h, v))

    module = counted(body, 9, [None], 3, start=start)
    given = (torch.randn(rows, 6), torch.randn(9, rows, 5), torch.randn(5, 6), torch.randn(6, 6))
    assert steps_in_loops(check(module, *given), ExternCall) == 1


@pytest.mark.parametrize("trips", [1, 9])
def test_a_product_of_each_row_leaves_no_loop(trips: int) -> None:
    def body(i: Any, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        torch.select(out, 0, i).copy_(torch.relu(torch.mm(torch.select(x, 0, i), w) + i))
        return (i + 1,)

    given = (torch.zeros(9, 3, 20), torch.randn(9, 3, 50), torch.randn(50, 20))
    schedule = check(counted(body, trips, [], 3), *given)
    calls = [step for step in schedule.steps if isinstance(step, ExternCall)]
    assert not loops(schedule) and len(calls) <= 1


def test_products_of_matrices_that_change_are_a_batch_before_the_loop() -> None:
    def rows_apart(i: Any, h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        product = torch.mm(torch.select(x, 1, i), w)
        return i + 1, torch.tanh(product + torch.mm(h, w))

    def of_each(i: Any, h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        product = torch.mm(w, torch.select(x, 0, i))
        return i + 1, torch.tanh(product + torch.mm(h, w))

    def of_state(i: Any, h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        torch.select(x, 0, i).copy_(torch.mm(torch.select(x, 0, i - 1), w))
        return i + 1, torch.tanh(torch.select(x, 0, i) + torch.mm(h, w))

    for body, left in ((rows_apart, 1), (of_each, 1), (of_state, 2)):
        module = counted(body, 5, [None], 2, start=1)
        schedule = check(module, torch.randn(5, 5), torch.randn(5, 5, 5), torch.randn(5, 5))
        assert steps_in_loops(schedule, ExternCall) == left
        before = [step.operator for step in schedule.steps if isinstance(step, ExternCall)]
        assert before == [torch.ops.aten.bmm.default] * (2 - left)


def test_reductions_before_the_loop_leave_a_kernel() -> None:
    def body(i: Any, h: torch.Tensor, x: torch.Tensor) -> Any:
        row = torch.select(x, 0, i)
        return i + 1, h * 0.5 + (row - row.mean()).abs().sum()

    assert not loops(check(counted(body, 9, [None], 1), torch.randn(7), torch.randn(9, 30)))
