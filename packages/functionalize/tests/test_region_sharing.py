"""Operands and results of regions that share storage: written, returned, carried."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from beside_eager import check
from weft_functionalize import Unsupported, functionalize

hop = torch.ops.higher_order
Node = torch.fx.Node


class Builder:
    """A graph with regions, node by node."""

    def __init__(self, *names: str) -> None:
        self.graph = torch.fx.Graph()
        self.inputs = [self.graph.placeholder(name) for name in names]
        self.root: dict[str, torch.nn.Module] = {}

    def region(self, function: Any) -> Node:
        name = f"region_{len(self.root)}"
        self.root[name] = (
            function
            if isinstance(function, torch.fx.GraphModule)
            else torch.fx.symbolic_trace(function)
        )
        return self.graph.get_attr(name)

    def cond(self, predicate: Node, true: Any, false: Any, operands: tuple[Any, ...]) -> Node:
        regions = (self.region(true), self.region(false))
        return self.graph.call_function(hop.cond, (predicate, *regions, operands))

    def loop(
        self, trips: int, body: Any, carried: tuple[Any, ...], additional: tuple[Any, ...] = ()
    ) -> Node:
        """``body(i, *carried, *additional)`` for i below ``trips``; item 0 is the counter."""
        count = len(carried) + len(additional)
        names = ", ".join(f"x{k}" for k in range(count))
        condition = eval(f"lambda i, {names}: i < {trips}")
        regions = (self.region(condition), self.region(body))
        return self.graph.call_function(hop.while_loop, (*regions, (0, *carried), additional))

    def item(self, node: Node, index: int) -> Node:
        return self.graph.call_function(operator.getitem, (node, index))

    def module(self, *outputs: Node) -> torch.fx.GraphModule:
        self.graph.output(outputs)
        return torch.fx.GraphModule(self.root, self.graph)


FLAGS = [torch.tensor(True), torch.tensor(False)]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_branch_that_writes_one_of_two_views(flag: torch.Tensor) -> None:
    def true(left: torch.Tensor, right: torch.Tensor) -> Any:
        left.add_(right)
        right.mul_(2)
        return (left * 1,)

    b = Builder("flag", "base")
    views = tuple(b.graph.call_method("select", (b.inputs[1], 0, k)) for k in (0, 1))
    node = b.cond(b.inputs[0], true, lambda left, right: (right * 3,), views)
    check(b.module(b.item(node, 0)), flag, torch.randn(3, 2))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_branch_that_writes_a_tensor_and_reads_a_view_of_it(flag: torch.Tensor) -> None:
    def true(base: torch.Tensor, column: torch.Tensor, part: torch.Tensor) -> Any:
        column.fill_(7)
        base.select(0, 0).copy_(part.sum())
        return (column + 1,)

    b = Builder("flag", "base")
    column = b.graph.call_method("select", (b.graph.call_method("t", (b.inputs[1],)), 0, 1))
    part = b.graph.call_function(torch.chunk, (b.inputs[1], 3))
    operands = (b.inputs[1], column, b.item(part, 1))
    node = b.cond(b.inputs[0], true, lambda base, column, part: (column,), operands)
    check(b.module(b.item(node, 0)), flag, torch.randn(3, 2))


def test_a_loop_that_writes_views_of_one_tensor() -> None:
    def body(i: Any, total: Any, base: Any, row: Any) -> Any:
        torch.select(base, 0, i).add_(1)
        row.mul_(2)
        return i + 1, total + base.sum()

    b = Builder("total", "base")
    row = b.graph.call_method("select", (b.inputs[1], 0, 1))
    node = b.loop(3, body, (b.inputs[0],), (b.inputs[1], row))
    check(b.module(b.item(node, 1)), torch.zeros(()), torch.randn(3, 2))


def test_a_loop_in_a_branch_that_swaps_tensors_and_writes_rows_of_one_is_refused() -> None:
    def body(i: Any, left: Any, right: Any, rows: Any) -> Any:
        rows.add_(1)
        return i + 1, right, left

    inside = Builder("left", "right", "rows")
    left, right, rows = inside.inputs
    loop = inside.loop(3, body, (left, right), (rows,))
    true = inside.module(inside.item(loop, 1), inside.item(loop, 2))
    b = Builder("flag", "left", "right")
    rows = b.graph.call_function(operator.getitem, (b.inputs[1], slice(1, None)))
    operands = (b.inputs[1], b.inputs[2], rows)
    node = b.cond(b.inputs[0], true, lambda a, b, rows: (a * 1, b * 1), operands)
    results = [b.graph.call_function(torch.add, (b.item(node, k), k)) for k in (0, 1)]
    module = b.module(*results, b.item(node, 0))
    with pytest.raises(Unsupported, match="that a region may return"):
        functionalize(module, [torch.tensor(True), torch.randn(4, 3), torch.randn(4, 3)])


def test_views_at_a_counter_inside_nested_loops() -> None:
    def inner(j: Any, base: Any, row: Any) -> Any:
        torch.select(row, 0, j).add_(j + 1)
        torch.select(base, 1, j).mul_(2)
        return (j + 1,)

    inside = Builder("i", "base")
    i, base = inside.inputs
    inside.loop(2, inner, (), (base, inside.graph.call_function(torch.select, (base, 0, i))))
    following = inside.graph.call_function(operator.add, (i, 1))
    b = Builder("base")
    b.loop(3, inside.module(following), (), (b.inputs[0],))
    check(b.module(), torch.randn(3, 2))


def rebinding(i: Any, state: torch.Tensor) -> Any:
    torch.select(state, 0, 0).add_(1)
    return i + 1, state * 2


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_write_to_a_carried_tensor_that_nobody_sees(trips: int) -> None:
    b = Builder("x")
    start = b.graph.call_method("mul", (b.inputs[0], 2))
    check(b.module(b.item(b.loop(trips, rebinding, (start,)), 1)), torch.randn(3, 2))


@pytest.mark.parametrize("trips", [0, 1, 2, 4])
def test_a_write_to_a_carried_tensor_of_the_caller(trips: int) -> None:
    b = Builder("x")
    program = b.module(b.item(b.loop(trips, rebinding, (b.inputs[0],)), 1))
    nodes = check(program, torch.randn(3, 2)).graph_module.graph.nodes
    peeled = "aten.select_scatter.default" in [str(n.target) for n in nodes]
    assert peeled == (trips > 0)


def test_a_carried_tensor_that_is_only_written_is_the_operand() -> None:
    def body(i: Any, state: torch.Tensor) -> Any:
        torch.select(state, 0, i).add_(1)
        return i + 1, state

    b = Builder("x")
    result = b.item(b.loop(3, body, (b.inputs[0],)), 1)
    b.graph.call_method("mul_", (result, 3))
    check(b.module(b.graph.call_method("add", (result, b.inputs[0]))), torch.randn(3, 2))


def test_carried_tensors_that_begin_as_views_of_what_is_written() -> None:
    def body(i: Any, row: Any, base: Any) -> Any:
        torch.select(base, 0, 0).mul_(2)
        torch.select(base, 0, i).add_(row)
        return i + 1, row * 0.5

    b = Builder("x")
    row = b.graph.call_method("select", (b.inputs[0], 0, 0))
    check(b.module(b.item(b.loop(3, body, (row,), (b.inputs[0],)), 1)), torch.randn(3, 2))


def one_side(function: Callable[..., Any]) -> torch.fx.GraphModule:
    """``flag, x -> cond(flag, function, identity)`` as a region."""
    b = Builder("flag", "x")
    node = b.cond(b.inputs[0], lambda x: (function(x),), lambda x: (x,), (b.inputs[1],))
    return b.module(b.item(node, 0))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_write_to_what_a_branch_may_have_returned(flag: torch.Tensor) -> None:
    b = Builder("flag", "x")
    node = b.item(b.cond(b.inputs[0], lambda x: (x,), lambda x: (x + 1,), (b.inputs[1],)), 0)
    b.graph.call_method("add_", (node, 1))
    check(b.module(b.graph.call_method("mul", (node, 1))), flag, torch.randn(3))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_write_to_what_a_branch_in_a_region_may_have_returned(flag: torch.Tensor) -> None:
    region = one_side(lambda x: x + 1)
    inner = Builder("flag", "x")
    result = inner.item(inner.cond(inner.inputs[0], region, region, tuple(inner.inputs)), 0)
    b = Builder("flag", "x")
    either = b.item(
        b.cond(b.inputs[0], inner.module(result), one_side(torch.sin), tuple(b.inputs)), 0
    )
    b.graph.call_method("add_", (either, 1))
    check(b.module(b.graph.call_method("mul", (b.inputs[1], 1))), flag, torch.randn(3))


@pytest.mark.parametrize("trips", [1, 2, 3])
def test_a_write_after_tensors_may_have_changed_places(trips: int) -> None:
    """After two iterations each is where it began."""
    b = Builder("x", "y")
    left, right = (b.graph.call_method("mul", (x, 2)) for x in b.inputs)
    loop = b.loop(trips, lambda i, x, y: (i + 1, y, x), (left, right))
    b.graph.call_method("add_", (b.item(loop, 1), 1))
    outputs = [b.graph.call_method("mul", (x, 1)) for x in (left, right, b.item(loop, 2))]
    check(b.module(*outputs), torch.randn(3), torch.randn(3))


@pytest.mark.parametrize("trips", [1, 2, 3])
def test_writes_in_a_loop_to_tensors_that_change_places(trips: int) -> None:
    def body(i: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        y.mul_(2)
        return i + 1, y, x

    b = Builder("x", "y")
    loop = b.loop(trips, body, tuple(b.inputs))
    outputs = [b.graph.call_method("mul", (b.item(loop, k), 1)) for k in (1, 2)]
    check(b.module(*outputs), torch.randn(3), torch.randn(3))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_write_in_a_region_to_one_of_two_tensors_that_may_be_one(flag: torch.Tensor) -> None:
    def write(left: torch.Tensor, right: torch.Tensor) -> Any:
        left.add_(1)
        return (right * 2,)

    b = Builder("flag", "x")
    base = b.graph.call_method("mul", (b.inputs[1], 2))
    region = one_side(lambda x: x + 1)
    either = b.item(b.cond(b.inputs[0], region, region, (b.inputs[0], base)), 0)
    node = b.cond(b.inputs[0], write, lambda left, right: (left * 1,), (either, base))
    outputs = [b.item(node, 0), *(b.graph.call_method("mul", (x, 1)) for x in (either, base))]
    check(b.module(*outputs), flag, torch.randn(3))


def test_a_write_to_what_may_be_a_view_is_refused() -> None:
    b = Builder("flag", "x")
    node = b.item(
        b.cond(b.inputs[0], lambda x: (x[1:],), lambda x: (x[:2] + 1,), (b.inputs[1],)), 0
    )
    b.graph.call_method("add_", (node, 1))
    with pytest.raises(Unsupported, match="region may return"):
        functionalize(b.module(b.inputs[1]), [torch.tensor(True), torch.randn(3)])
