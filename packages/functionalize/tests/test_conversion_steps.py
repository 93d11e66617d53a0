"""Each step of algorithm 1 where a write reaches a view that is used later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from weft_functionalize.aten_normalization import normalize
from weft_functionalize.tensor_ssa.alias_graph import build_alias_graph
from weft_functionalize.tensor_ssa.dead_code import eliminate_dead_code
from weft_functionalize.tensor_ssa.region_aliases import SharedValues
from weft_functionalize.tensor_ssa.renaming import rename
from weft_functionalize.tensor_ssa.rewrite_mutation import rewrite_mutation


def text(graph: torch.fx.Graph) -> list[str]:
    """One line a node, nodes numbered in order."""
    names = {node: f"%{k}" for k, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        if node.op == "call_function":
            arguments = torch.fx.map_arg(node.args, lambda n: names[n])
            target = getattr(node.target, "__name__", str(node.target))
            listed = ", ".join(str(a) for a in arguments)
            lines.append(f"{names[node]} = {target}({listed})")
    return lines


def steps(function: Callable[..., Any], *inputs: torch.Tensor) -> Iterator[list[str]]:
    """The graph as recorded, rewritten, renamed and without dead code; its first input is kept."""
    normalized = normalize(torch.fx.symbolic_trace(function), inputs)
    recorder = normalized.recorder
    graph = recorder.graph
    yield text(graph)
    with torch.no_grad(), normalized.fake_mode:
        kept = (recorder.inputs[0].node, *map(recorder.node_of, normalized.outputs))
        output = graph.output(kept)
        rewrite_mutation(graph, SharedValues(graph, build_alias_graph(graph), ()), kept)
        yield text(graph)
        versions = rename(graph)
        output.args = (tuple(versions.get(node, node) for node in kept),)
        yield text(graph)
        eliminate_dead_code(graph)
        yield text(graph)


def test_views_that_are_used_after_a_write() -> None:
    """Pass-up to the base through two views, pass-down to another view of it: Access and Update."""

    def program(b: torch.Tensor) -> Any:
        seen = b.t()
        b[1:][0].mul_(2)
        return seen + 1

    recorded, rewritten, renamed, final = steps(program, torch.randn(3, 2))
    assert recorded == [
        "%1 = t.default(%0)",
        "%2 = slice.Tensor(%0, 0, 1, 9223372036854775807)",
        "%3 = select.int(%2, 0, 0)",
        "%4 = mul_.Tensor(%3, 2)",
        "%5 = add.Tensor(%1, 1)",
    ]
    assert rewritten == [
        *recorded[:3],
        "%4 = mul.Tensor(%3, 2)",
        "%5 = select_scatter.default(%2, %4, 0, 0)",
        "%6 = slice_scatter.default(%0, %5, 0, 1, 9223372036854775807, 1)",
        "%7 = update(%6, %0)",
        "%8 = t.default(%6)",
        "%9 = update(%8, %1)",
        "%10 = add.Tensor(%1, 1)",
    ]
    assert renamed == [*rewritten[:6], "%7 = t.default(%6)", "%8 = add.Tensor(%7, 1)"]
    assert final == [
        "%1 = slice.Tensor(%0, 0, 1, 9223372036854775807)",
        "%2 = select.int(%1, 0, 0)",
        "%3 = mul.Tensor(%2, 2)",
        "%4 = select_scatter.default(%1, %3, 0, 0)",
        "%5 = slice_scatter.default(%0, %4, 0, 1, 9223372036854775807, 1)",
        "%6 = t.default(%5)",
        "%7 = add.Tensor(%6, 1)",
    ]
