"""Conditions of loops, computed at the end of each iteration, where they fuse with the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft_loop_ir.ir import Branch, Loop, Region
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node


def turn_conditions(loop_graph: LoopGraph) -> LoopGraph:
    """Let each condition that is one node run before its loop and after each iteration.

    It computes nothing that an iteration wouldn't: what it reads is the loop's state.  One that depends on
    the counter stays.
    """
    if not any(isinstance(node, Region) for node in loop_graph.nodes):
        return loop_graph
    return replace(loop_graph, nodes=_block(loop_graph.nodes))


def _block(nodes: Sequence[Node]) -> tuple[Node, ...]:
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Branch):
            result.append(node.with_blocks(*map(_block, node.blocks)))
        elif isinstance(node, Loop):
            result += _turned(replace(node, body=_block(node.body)))
        else:
            result.append(node)
    return tuple(result)


def _turned(loop: Loop) -> list[Node]:
    """The loop, after what computes its condition for the first iteration."""
    if loop.predicate is None or len(loop.condition) != 1:
        return [loop]
    (test,) = loop.condition
    if not isinstance(test, LoopNode) or test.writes != (loop.predicate.buffer,):
        return [loop]
    if loop.count is not None and any(
        loop.count.symbol in expression.free_symbols
        for instruction in test.body.instructions
        for expression in instruction.arguments
        if hasattr(expression, "free_symbols")
    ):
        return [loop]
    carried = (*loop.carried, *test.writes)
    body = (*loop.body, replace(test, name=f"{test.name}_again"))
    return [test, replace(loop, condition=(), body=body, carried=carried)]
