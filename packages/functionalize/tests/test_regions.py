"""Branches and loops: blocks converted from the innermost outwards, beside eager."""

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


def region(operation: Any, graphs: list[Callable[..., Any]], operands: int, split: int) -> Any:
    """A graph of one region operator on all of its inputs; it returns the results, then the inputs."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{k}") for k in range(operands)]
    root = {f"g{k}": torch.fx.symbolic_trace(g) for k, g in enumerate(graphs)}
    attributes = [graph.get_attr(name) for name in root]
    given: tuple[Any, ...]
    if operation is hop.cond:
        given = (inputs[0], *attributes, tuple(inputs[1:]))
    else:
        given = (*attributes, tuple(inputs[:split]), tuple(inputs[split:]))
    node = graph.call_function(operation, given)
    (output,) = root["g1"].graph.find_nodes(op="output")
    results = [graph.call_function(operator.getitem, (node, k)) for k in range(len(output.args[0]))]
    graph.output((*results, *inputs))
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize("predicate", [True, False])
def test_a_sibling_returns_what_it_does_not_write(predicate: bool) -> None:
    def true(a: torch.Tensor) -> Any:
        a.mul_(2)
        return (a.sum(),)

    module = region(hop.cond, [true, lambda a: (a.sum() + 1,)], 2, 0)
    check(module, torch.tensor(predicate), torch.randn(3, 2))


@pytest.mark.parametrize("predicate", [True, False])
def test_a_view_of_a_base_is_written_in_a_branch(predicate: bool) -> None:
    graph = torch.fx.Graph()
    flag, base = graph.placeholder("flag"), graph.placeholder("base")
    view = graph.call_method("select", (base, 1, 0))

    def true(view: torch.Tensor) -> Any:
        view.zero_()
        return ()

    root = {"t": torch.fx.symbolic_trace(true), "f": torch.fx.symbolic_trace(lambda view: ())}
    regions = (graph.get_attr("t"), graph.get_attr("f"))
    graph.call_function(hop.cond, (flag, *regions, (view,)))
    graph.output((base, graph.call_method("add", (view, 1))))
    check(torch.fx.GraphModule(root, graph), torch.tensor(predicate), torch.randn(3, 4))


def test_loops_on_values_carry_tensors_in_any_layout() -> None:
    def body(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
        return b + 1, (torch.mm(a, w) + w).t()

    module = region(hop.while_loop, [lambda a, b, w: a.abs().sum() < 1e3, body], 3, 2)
    check(module, torch.rand(4, 4), torch.rand(4, 4), torch.rand(4, 4))
    check(module, torch.rand(4, 4).t(), torch.rand(4, 8)[:, ::2], torch.rand(4, 4))
    check(module, torch.full((4, 4), 1e4), torch.rand(4, 4), torch.rand(4, 4))


def test_nested_regions_carry_writes_out_of_both() -> None:
    def inner_body(j: Any, row: torch.Tensor) -> Any:
        torch.select(row, 0, j).add_(1)
        return (j + 1,)

    outer = torch.fx.Graph()
    i, table = outer.placeholder("i"), outer.placeholder("table")
    taken = outer.call_function(torch.select, (table, 0, i))
    inner_graphs = {
        "c": torch.fx.symbolic_trace(lambda j, row: j < 3),
        "b": torch.fx.symbolic_trace(inner_body),
    }
    regions = (outer.get_attr("c"), outer.get_attr("b"))
    outer.call_function(hop.while_loop, (*regions, (0,), (taken,)))
    outer.output((outer.call_function(operator.add, (i, 1)),))
    body = torch.fx.GraphModule(inner_graphs, outer)
    top = torch.fx.Graph()
    table = top.placeholder("table")
    root = {"c": torch.fx.symbolic_trace(lambda i, table: i < 4), "b": body}
    regions = (top.get_attr("c"), top.get_attr("b"))
    top.call_function(hop.while_loop, (*regions, (0,), (table,)))
    top.output((table,))
    check(torch.fx.GraphModule(root, top), torch.randn(4, 3))


def test_literals_in_a_region_become_operands() -> None:
    module = region(
        hop.while_loop,
        [lambda a: a.sum() < 50, lambda a: (a * 2 + torch.tensor([1.0, 2.0]),)],
        1,
        1,
    )
    check(module, torch.ones(2))


def test_what_can_not_be_joined_is_refused() -> None:
    flag, x = torch.tensor(True), torch.randn(3)
    with pytest.raises(Unsupported, match="different tensors"):
        functionalize(region(hop.cond, [lambda x: (x,), lambda x: (x[:1],)], 2, 0), [flag, x])
    with pytest.raises(Unsupported, match="different values"):
        functionalize(region(hop.cond, [lambda x: (1,), lambda x: (2,)], 2, 0), [flag, x])
    with pytest.raises(Unsupported, match="predicate"):
        functionalize(region(hop.cond, [lambda x: (x,), lambda x: (x,)], 2, 0), [x, x])
    with pytest.raises(Unsupported, match="carried tensor that changes"):
        functionalize(
            region(hop.while_loop, [lambda x: x.sum() < 9, lambda x: (torch.cat([x, x]),)], 1, 1),
            [x],
        )
