"""The paper's figures 2 and 4, every step of algorithm 1 on every block, the innermost first.

``writes %1 -> 0`` is block propagation: the region's result 0 is the new version of ``%1``, for which the
next step has an Update in the block around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from beside_eager import check
from weft_functionalize import FunctionalizeOptions, format_block, functionalize

hop = torch.ops.higher_order
NAMES = ("recorded", "rewritten", "renamed", "converted")


def blocks(module: torch.fx.GraphModule, *inputs: torch.Tensor) -> list[list[list[str]]]:
    """For each block its text after each of the four steps."""
    found: list[tuple[str, list[str]]] = []
    observe = lambda name, graph: found.append((name, format_block(graph)))  # noqa: E731
    functionalize(module, inputs, options=FunctionalizeOptions(observe=observe))
    assert [name for name, _ in found] == list(NAMES) * (len(found) // 4)
    texts = [text for _, text in found]
    return [list(texts[k : k + 4]) for k in range(0, len(texts), 4)]


def program(
    names: Sequence[str],
    regions: dict[str, Callable[..., Any]],
    build: Callable[..., torch.fx.Node],
) -> torch.fx.GraphModule:
    """A graph that ``build`` makes of its inputs, with these regions."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in names]
    graph.output((build(graph, *inputs),))
    root = {name: torch.fx.symbolic_trace(region) for name, region in regions.items()}
    return torch.fx.GraphModule(root, graph)


def figure_4() -> torch.fx.GraphModule:
    """``b = b.clone(); for i in range(n): b[i] = b[i] + 1; return b``."""

    def body(i: Any, b: torch.Tensor) -> Any:
        read = torch.select(b, 0, i) + 1
        torch.select(b, 0, i).copy_(read)
        return (i + 1,)

    def build(graph: torch.fx.Graph, given: torch.fx.Node) -> torch.fx.Node:
        b = graph.call_method("clone", (given,))
        parts = (graph.get_attr("condition"), graph.get_attr("body"))
        graph.call_function(hop.while_loop, (*parts, (0,), (b,)))
        return b

    return program(["b"], {"condition": lambda i, b: i < 5, "body": body}, build)


def figure_2() -> torch.fx.GraphModule:
    """``if idx >= 0: a += 1; b[0] = a[0]``, ``else: a -= 1; b[1] = a[1]``; ``return b``."""

    def true(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        b.select(0, 0).copy_(a.select(0, 0))
        return ()

    def false(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.sub_(1)
        b.select(0, 1).copy_(a.select(0, 1))
        return ()

    def build(graph: torch.fx.Graph, *given: torch.fx.Node) -> torch.fx.Node:
        index, a, b = given
        test = graph.call_function(torch.ge, (index, 0))
        sides = (graph.get_attr("true"), graph.get_attr("false"))
        graph.call_function(hop.cond, (test, *sides, (a, b)))
        return b

    return program(["idx", "a", "b"], {"true": true, "false": false}, build)


def test_figure_4_body() -> None:
    """Pass-up makes one Assign and its Update; no other view is in use for pass-down to make anew."""
    recorded, rewritten, renamed, converted = blocks(figure_4(), torch.randn(5, 3))[0]
    assert recorded == [
        "block(%0, %1)",
        "%2 = add(1, %0)",
        "%3 = select.int(%1, 0, %0)",
        "%4 = add.Tensor(%3, 1)",
        "%5 = select.int(%1, 0, %0)",
        "%6 = copy_.default(%5, %4)",
        "return %2, %1",
    ]
    assert rewritten == [
        *recorded[:5],
        "%6 = select_scatter.default(%1, %4, 0, %0)",
        "%7 = update(%6, %1)",
        "return %2, %1",
    ]
    assert renamed == [*rewritten[:6], "return %2, %6"]
    assert converted == [
        *recorded[:4],
        "%5 = select_scatter.default(%1, %4, 0, %0)",
        "return %2, %5",
    ]


def test_figure_4_loop() -> None:
    """Block propagation: ``b`` is carried, and the loop's second result is its new version."""
    _, condition, around = blocks(figure_4(), torch.randn(5, 3))
    assert all(text == ["block(%0, %1)", "%2 = lt(%0, 5)", "return %2"] for text in condition)
    recorded, rewritten, renamed, converted = around
    loop = "%2 = while_loop(condition_0, body_1, (0, %1), ()) writes %1 -> 1"
    start = ["block(%0)", "%1 = clone.default(%0)", loop]
    assert recorded == [*start, "%3 = %2[0]", "%4 = %2[1]", "return %1"]
    assert rewritten == [
        *start,
        "%3 = %2[1]",
        "%4 = update(%3, %1)",
        "%5 = %2[0]",
        "%6 = %2[1]",
        "return %1",
    ]
    assert renamed == [*start, "%3 = %2[1]", "%4 = %2[0]", "%5 = %2[1]", "return %3"]
    assert converted == [*start, "%3 = %2[1]", "return %3"]


def test_figure_2_sides() -> None:
    """A write to the whole of ``a`` and one to a part of ``b``; each side returns both."""
    sides = blocks(figure_2(), torch.tensor(1), torch.randn(3, 2), torch.randn(3, 2))[:2]
    for (operator, place), steps in zip((("add", 0), ("sub", 1)), sides, strict=True):
        recorded, rewritten, renamed, converted = steps
        assert recorded == [
            "block(%0, %1)",
            f"%2 = {operator}_.Tensor(%0, 1)",
            f"%3 = select.int(%1, 0, {place})",
            f"%4 = select.int(%0, 0, {place})",
            "%5 = copy_.default(%3, %4)",
            "return %0, %1",
        ]
        assert rewritten == [
            "block(%0, %1)",
            f"%2 = {operator}.Tensor(%0, 1)",
            "%3 = update(%2, %0)",
            f"%4 = select.int(%1, 0, {place})",
            f"%5 = select.int(%0, 0, {place})",
            f"%6 = select_scatter.default(%1, %5, 0, {place})",
            "%7 = update(%6, %1)",
            "return %0, %1",
        ]
        assert renamed == [
            "block(%0, %1)",
            f"%2 = {operator}.Tensor(%0, 1)",
            f"%3 = select.int(%1, 0, {place})",
            f"%4 = select.int(%2, 0, {place})",
            f"%5 = select_scatter.default(%1, %4, 0, {place})",
            "return %2, %5",
        ]
        assert converted == [
            "block(%0, %1)",
            f"%2 = {operator}.Tensor(%0, 1)",
            f"%3 = select.int(%2, 0, {place})",
            f"%4 = select_scatter.default(%1, %3, 0, {place})",
            "return %2, %4",
        ]


def test_figure_2_branch() -> None:
    """Block propagation: the branch gives new versions of both, each with its Update."""
    steps = blocks(figure_2(), torch.tensor(1), torch.randn(3, 2), torch.randn(3, 2))[2]
    recorded, rewritten, renamed, converted = steps
    branch = "%4 = cond(%3, true_graph_0, false_graph_1, (%1, %2)) writes %1 -> 0, %2 -> 1"
    start = ["block(%0, %1, %2)", "%3 = ge.Scalar(%0, 0)", branch, "%5 = %4[0]"]
    assert recorded == [*start, "%6 = %4[1]", "return %1, %2"]
    assert rewritten == [
        *start,
        "%6 = update(%5, %1)",
        "%7 = %4[1]",
        "%8 = update(%7, %2)",
        "%9 = %4[0]",
        "%10 = %4[1]",
        "return %1, %2",
    ]
    assert renamed == [*start, "%6 = %4[1]", "%7 = %4[0]", "%8 = %4[1]", "return %5, %6"]
    assert converted == [*start, "%6 = %4[1]", "return %5, %6"]


def test_results() -> None:
    """Of the loop, and of both sides of the branch."""
    check(figure_4(), torch.randn(5, 3))
    for index in (1, 0, -1):
        check(figure_2(), torch.tensor(index), torch.randn(3, 2), torch.randn(3, 2))


def test_steps_are_not_made_for_nobody() -> None:
    """Without an observer no text is made: the graphs are the same."""
    for build in (figure_4, figure_2):
        inputs = [torch.tensor(1), torch.randn(5, 2), torch.randn(5, 2)]
        given = inputs[1:2] if build is figure_4 else inputs
        plain = functionalize(build(), given).graph_module.graph
        shown = blocks(build(), *given)[-1][-1]
        assert format_block(plain)[:-1] == shown[:-1]
