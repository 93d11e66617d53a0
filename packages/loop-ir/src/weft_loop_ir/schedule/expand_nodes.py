"""Nodes of a loop's body for all iterations at once, and nodes that read what was computed so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from weft_loop_ir.bodies.replay import IndexFunction, Replayer, unchanged
from weft_loop_ir.ir import Buffer, BufferView, Count, ExternCall, Loop, LoopVariable
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.iterations import value_in
from weft_loop_ir.schedule.matmuls_of_iterations import MatmulOfAll
from weft_loop_ir.schedule.memory_plan import storage_elements


@dataclass(frozen=True)
class Iterations:
    """A loop that becomes the loop ``variable`` of its nodes.

    ``own`` are its iterations' own buffers, each with the elements that it has in one iteration; ``matmuls``
    the calls of its body that are made for all iterations, by name.
    """

    count: Count
    variable: LoopVariable
    own: Mapping[str, sympy.Expr]
    matmuls: Mapping[str, MatmulOfAll]


def expanded(buffer: Buffer, trips: sympy.Expr, matmul: MatmulOfAll | None) -> Buffer:
    """``buffer`` with a row for each iteration, or as ``matmul`` makes it for all."""
    row, layout = storage_elements(buffer), buffer.layout
    size, stride = (trips, *layout.size), (row, *layout.stride)
    if matmul is not None and len(matmul.size) == len(layout.size):
        size, stride = matmul.size, (layout.size[1], sympy.S.One)
    return replace(buffer, layout=replace(layout, size=size, stride=stride))


def over_iterations(node: Any, iterations: Iterations, buffers: Mapping[str, Buffer]) -> Any:
    """A node, a matmul or a loop of a body as one for all iterations; ``buffers`` are expanded already."""
    if isinstance(node, Loop):
        body = tuple(over_iterations(n, iterations, buffers) for n in node.body)
        return replace(node, body=body)
    if isinstance(node, ExternCall):
        return iterations.matmuls[node.name].call
    variable = iterations.variable
    value = {iterations.count.symbol: value_in(iterations.count, variable.symbol)}

    def index(expression: sympy.Expr) -> sympy.Expr:
        return expression.xreplace(value)

    loops = (variable, *node.loops)
    return _placed(node, loops, index, iterations.own, variable.symbol, buffers)


def in_iteration(node: Any, iterations: Iterations, buffers: Mapping[str, Buffer]) -> Any:
    """A node or a call of a body whose iterations' ``own`` buffers have a row for each; the step is 1."""
    number = iterations.count.symbol - iterations.count.start
    if isinstance(node, LoopNode):
        return _placed(node, node.loops, unchanged, iterations.own, number, buffers)
    assert isinstance(node, ExternCall)

    def placed(argument: Any) -> Any:
        if isinstance(argument, BufferView) and argument.buffer in iterations.own:
            moved = iterations.own[argument.buffer] * number
            return replace(argument, offset=sympy.expand(argument.offset + moved))
        return argument

    return node.mapped(placed)


def _placed(
    node: LoopNode,
    loops: tuple[LoopVariable, ...],
    index: IndexFunction,
    own: Mapping[str, sympy.Expr],
    number: sympy.Expr,
    buffers: Mapping[str, Buffer],
) -> LoopNode:
    """``node`` over ``loops``, with its accesses to ``own`` buffers in the row ``number``."""
    recorder = BodyRecorder.over(
        loops + node.reduction_loops, lambda name: buffers[name].layout.dtype
    )

    def simplified(expression: sympy.Expr) -> sympy.Expr:
        return recorder.ranges.simplify(sympy.expand_mul(expression))

    def place(name: str, where: sympy.Expr) -> tuple[str, sympy.Expr]:
        return name, simplified(where + own[name] * number) if name in own else where

    Replayer(recorder, lambda e: simplified(index(e)), place=place).replay(node.body)
    return replace(node, loops=loops, body=recorder.body())
