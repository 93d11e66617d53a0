"""Nodes of a loop's body for all iterations at once, and nodes that read what was computed so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferView, Count, ExternCall, Loop, LoopVariable, Value
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.iterations import value_in
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.schedule.transform import Replayer

aten = torch.ops.aten


@dataclass(frozen=True)
class Iterations:
    """A loop that becomes the loop ``variable`` of its nodes.

    ``own`` are its iterations' own buffers, each with the elements that it has in one iteration.
    """

    count: Count
    variable: LoopVariable
    own: Mapping[str, sympy.Expr]


def expanded(buffer: Buffer, trips: sympy.Expr, is_product: bool) -> Buffer:
    """``buffer`` with a row for each iteration; a product's rows below each other as a matrix."""
    row, layout = storage_elements(buffer), buffer.layout
    if is_product:
        size = (trips * layout.size[0], layout.size[1])
        return replace(
            buffer, layout=replace(layout, size=size, stride=(layout.size[1], sympy.S.One))
        )
    size = (trips, *layout.size)
    return replace(buffer, layout=replace(layout, size=size, stride=(row, *layout.stride)))


def over_iterations(node: Any, iterations: Iterations, buffers: Mapping[str, Buffer]) -> Any:
    """A node, a product or a loop of a body as one for all iterations; ``buffers`` are expanded already."""
    if isinstance(node, Loop):
        body = tuple(over_iterations(n, iterations, buffers) for n in node.body)
        return replace(node, body=body)
    if isinstance(node, ExternCall):
        return _product_of_all(node, iterations)
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
        return _placed(node, node.loops, lambda e: e, iterations.own, number, buffers)
    assert isinstance(node, ExternCall)

    def placed(argument: Any) -> Any:
        if isinstance(argument, BufferView) and argument.buffer in iterations.own:
            moved = iterations.own[argument.buffer] * number
            return replace(argument, offset=sympy.expand(argument.offset + moved))
        if isinstance(argument, list | tuple):
            return type(argument)(placed(a) for a in argument)
        return argument

    keywords = {name: placed(argument) for name, argument in node.keywords.items()}
    return replace(node, arguments=placed(node.arguments), keywords=keywords)


def _placed(
    node: LoopNode,
    loops: tuple[LoopVariable, ...],
    index: Callable[[sympy.Expr], sympy.Expr],
    own: Mapping[str, sympy.Expr],
    number: sympy.Expr,
    buffers: Mapping[str, Buffer],
) -> LoopNode:
    """``node`` over ``loops``, with its accesses to ``own`` buffers in the row ``number``."""
    ranges = ranges_for(tuple((v.symbol, v.size) for v in loops + node.reduction_loops))
    recorder = BodyRecorder(ranges, lambda name: buffers[name].layout.dtype)

    def place(name: str, where: sympy.Expr) -> sympy.Expr:
        return where + own[name] * number if name in own else where

    def simplified(expression: sympy.Expr) -> sympy.Expr:
        return ranges.simplify(sympy.expand_mul(expression))

    def load(ops: BodyRecorder, name: str, where: sympy.Expr) -> Value:
        return ops.load(name, simplified(place(name, where)))

    def store(
        ops: BodyRecorder, name: str, where: sympy.Expr, stored: Value, mode: str | None
    ) -> None:
        ops.store(name, simplified(place(name, where)), stored, mode)

    Replayer(recorder, lambda e: simplified(index(e)), load, store).replay(node.body)
    return replace(node, loops=loops, body=recorder.body())


# -- products of matrices --------------------------------------------------------------------------------


def is_row_product(call: ExternCall, count: Count, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the products of all iterations are one: rows that follow each other, by the same matrix."""
    if call.operator is not aten.mm.default or call.out_variant is None or call.keywords:
        return False
    left, right = call.arguments
    (result,) = call.outputs
    if result is None or not _is_contiguous(buffers[result]):
        return False
    moved = sympy.expand(left.offset.subs(count.symbol, count.symbol + 1) - left.offset)
    rows, _ = left.size
    views = (*left.size, *left.stride, *right.size, *right.stride, right.offset)
    if any(count.symbol in e.free_symbols for e in (*views, moved)) or moved == 0:
        return False
    return bool(rows == 1 or sympy.expand(moved - rows * left.stride[0]) == 0)


def _is_contiguous(buffer: Buffer) -> bool:
    layout = buffer.layout
    follows = layout.size[0] == 1 or layout.stride[0] == layout.size[1]
    return bool(layout.stride[1] == 1 and follows)


def _product_of_all(call: ExternCall, iterations: Iterations) -> ExternCall:
    """The product of the rows of all iterations."""
    left, right = call.arguments
    count = iterations.count
    rows, inner = left.size
    moved = sympy.expand(left.offset.subs(count.symbol, count.symbol + 1) - left.offset)
    stacked = replace(
        left,
        size=(rows * iterations.variable.size, inner),
        stride=(moved if rows == 1 else left.stride[0], left.stride[1]),
        offset=sympy.expand(left.offset.subs(count.symbol, count.start)),
    )
    return replace(call, arguments=(stacked, right))
