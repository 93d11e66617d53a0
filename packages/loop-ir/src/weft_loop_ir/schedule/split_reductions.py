"""Splitting a large reduction to few results in two kernels: partial results, then their reduction."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from weft_loop_ir.expressions import (
    contiguous_stride,
    dot,
    integer,
    loop_symbol,
    product,
    to_int,
)
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferKind, ExternCall, Layout, LoopVariable, Region, Value
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, body_accesses
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.accesses import index_expressions, linear_form
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.transform import Replayer

PARTS_OF_FEW = 4
"""Where results count as few below some number, so many times that number of partial results are wanted."""

SPLITTABLE = frozenset("sum prod max min any all".split())
"""Kinds whose partial results reduce again by the same kind."""


def split_large_reductions(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Split each reduction of ``options.split_reduction_elements`` or more elements to few results."""
    limit = options.split_reduction_elements
    if limit is None:
        return loop_graph
    buffers = dict(loop_graph.buffers)
    nodes: list[LoopNode | ExternCall | Region] = []
    for node in loop_graph.nodes:
        parts = _parts(node, limit, options) if isinstance(node, LoopNode) else None
        if parts is None or not isinstance(node, LoopNode):
            nodes.append(node)
            continue
        nodes.extend(_split(node, parts, buffers))
    if len(nodes) == len(loop_graph.nodes):
        return loop_graph
    return LoopGraph(
        loop_graph.name,
        loop_graph.inputs,
        loop_graph.symbols,
        buffers,
        tuple(nodes),
        loop_graph.outputs,
        loop_graph.fallbacks,
        loop_graph.constants,
    )


def _parts(node: LoopNode, limit: int, options: ScheduleOptions) -> int | None:
    """How many parts the outermost reduced loop is cut in; None to leave the node whole."""
    reductions = [i for i in node.body.instructions if i.operation == "reduction"]
    if len(reductions) != 1 or reductions[0].arguments[0] not in SPLITTABLE:
        return None
    results = product(tuple(v.size for v in node.loops))
    elements = product(tuple(v.size for v in node.reduction_loops))
    if not isinstance(results, sympy.Integer) or not isinstance(elements, sympy.Integer):
        return None
    few = options.split_rows
    if _reads_columns(node):
        few, limit = options.split_columns, options.split_column_elements
    if not 0 < int(results) <= few or int(elements) < limit:
        return None
    wanted = options.split_reduction_parts
    if few > 1:
        wanted = min(wanted, few // int(results) * PARTS_OF_FEW)
    extent = int(node.reduction_loops[0].size)
    for parts in range(wanted, 1, -1):
        if extent % parts == 0:
            return parts
    return None


def _reads_columns(node: LoopNode) -> bool:
    """Whether neighbouring results, not neighbouring elements of one, are read side by side."""
    if not node.loops:
        return False
    symbols = (node.loops[-1].symbol, node.reduction_loops[-1].symbol)
    steps = [
        linear_form(index, symbols).coefficients
        for buffer, is_store, index in index_expressions(node.body)
        if buffer is not None and not is_store
    ]
    return any(step[0] == 1 for step in steps) and not any(step[1] == 1 for step in steps)


def _split(node: LoopNode, parts: int, buffers: dict[str, Buffer]) -> list[LoopNode]:
    (output,) = node.writes
    layout = buffers[output].layout
    partial = f"{output}_partial"
    sizes = (integer(parts), *(v.size for v in node.loops))
    strides = contiguous_stride(sizes)
    buffers[partial] = Buffer(
        partial,
        BufferKind.INTERMEDIATE,
        Layout(layout.device, layout.dtype, sizes, strides),
    )

    def dtype_of(name: str) -> torch.dtype:
        return buffers[name].layout.dtype

    part = LoopVariable(loop_symbol("i", len(node.loops)), integer(parts))
    first = node.reduction_loops[0]
    length = integer(int(first.size) // parts)
    inner = (LoopVariable(first.symbol, length), *node.reduction_loops[1:])
    loops = (part, *node.loops)
    ranges = ranges_for(tuple((v.symbol, v.size) for v in loops + inner))
    ops = BodyRecorder(ranges, dtype_of)
    shifted = {first.symbol: first.symbol + length * part.symbol}
    symbols = (first.symbol,)

    def index(expression: sympy.Expr) -> sympy.Expr:
        form = linear_form(expression, symbols)
        if not form.opaque:
            return expression + to_int(form.coefficients[0]) * length * part.symbol
        return expression.xreplace(shifted)

    place = dot(tuple(v.symbol for v in loops), strides, sympy.S.Zero)

    def store(
        ops: BodyRecorder, name: str, where: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        ops.store(partial, place, value)

    Replayer(ops, index, None, store).replay(node.body)
    body = ops.body()
    reads, writes = body_accesses(body)
    head = LoopNode(partial, loops, inner, body, reads, writes, node.origins)
    return [head, _tail(node, buffers[partial], dtype_of)]


def _tail(node: LoopNode, partial: Buffer, dtype_of: Callable[[str], torch.dtype]) -> LoopNode:
    """The node that reduces the parts and stores the results where ``node`` did."""
    (reduction,) = [i for i in node.body.instructions if i.operation == "reduction"]
    (target,) = [i for i in node.body.instructions if i.operation == "store"]
    loop = LoopVariable(node.reduction_loops[0].symbol, partial.layout.size[0])
    loops = (loop, *node.loops)
    ops = BodyRecorder(ranges_for(tuple((v.symbol, v.size) for v in loops)), dtype_of)
    place = dot(tuple(v.symbol for v in loops), partial.layout.stride, sympy.S.Zero)
    value = ops.reduction(
        reduction.arguments[0], reduction.arguments[1], ops.load(partial.name, place)
    )
    ops.store(target.arguments[0], target.arguments[1], value)
    body = ops.body()
    reads, writes = body_accesses(body)
    return LoopNode(node.name, node.loops, (loop,), body, reads, writes, node.origins)
