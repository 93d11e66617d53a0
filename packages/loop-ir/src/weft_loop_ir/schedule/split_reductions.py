"""Splitting a large reduction to few elements in two kernels: partial results, then their reduction."""

from __future__ import annotations

import sympy

from weft_loop_ir.expressions import contiguous_stride, dot, integer, loop_symbol, to_int
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferKind, Layout, LoopVariable
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, body_accesses
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.accesses import linear_form
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.transform import Replayer

SPLITTABLE = frozenset("sum prod max min any all".split())
"""Kinds whose partial results reduce again by the same kind."""


def split_large_reductions(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Split each full reduction of ``options.split_reduction_elements`` or more elements."""
    limit = options.split_reduction_elements
    if limit is None:
        return loop_graph
    buffers = dict(loop_graph.buffers)
    nodes: list[object] = []
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
        tuple(nodes),  # type: ignore[arg-type]
        loop_graph.outputs,
        loop_graph.fallbacks,
        loop_graph.constants,
    )


def _parts(node: LoopNode, limit: int, options: ScheduleOptions) -> int | None:
    """How many parts the outermost reduced loop is cut in; None to leave the node whole."""
    if not node.reduction_loops or any(v.size != 1 for v in node.loops):
        return None
    reductions = [i for i in node.body.instructions if i.operation == "reduction"]
    if len(reductions) != 1 or reductions[0].arguments[0] not in SPLITTABLE:
        return None
    total: sympy.Expr = sympy.S.One
    for variable in node.reduction_loops:
        total = total * variable.size
    if not isinstance(total, sympy.Integer) or int(total) < limit:
        return None
    extent = int(_merged_extent(node))
    for parts in range(options.split_reduction_parts, 1, -1):
        if extent % parts == 0:
            return parts
    return None


def _merged_extent(node: LoopNode) -> sympy.Expr:
    return node.reduction_loops[0].size


def _split(node: LoopNode, parts: int, buffers: dict[str, Buffer]) -> list[LoopNode]:
    (output,) = node.writes
    layout = buffers[output].layout
    partial = f"{output}_partial"
    buffers[partial] = Buffer(
        partial,
        BufferKind.INTERMEDIATE,
        Layout(layout.device, layout.dtype, (integer(parts),), (sympy.S.One,)),
    )

    def dtype_of(name: str) -> object:
        return buffers[name].layout.dtype

    part = LoopVariable(loop_symbol("i", len(node.loops)), integer(parts))
    first = node.reduction_loops[0]
    length = integer(int(first.size) // parts)
    inner = (LoopVariable(first.symbol, length), *node.reduction_loops[1:])
    loops = (*node.loops, part)
    ranges = ranges_for(tuple((v.symbol, v.size) for v in loops + inner))
    ops = BodyRecorder(ranges, dtype_of)  # type: ignore[arg-type]
    shifted = {first.symbol: first.symbol + length * part.symbol}
    symbols = (first.symbol,)

    def index(expression: sympy.Expr) -> sympy.Expr:
        form = linear_form(expression, symbols)
        if not form.opaque:
            return expression + to_int(form.coefficients[0]) * length * part.symbol
        return expression.xreplace(shifted)

    def store(ops: BodyRecorder, name: str, where: object, value: object, mode: object) -> None:
        ops.store(partial, part.symbol, value)  # type: ignore[arg-type]

    Replayer(ops, index, None, store).replay(node.body)
    body = ops.body()
    reads, writes = body_accesses(body)
    head = LoopNode(partial, loops, inner, body, reads, writes, node.origins)
    return [head, _tail(node, partial, parts, dtype_of, layout)]


def _tail(node: LoopNode, partial: str, parts: int, dtype_of: object, layout: Layout) -> LoopNode:
    (reduction,) = [i for i in node.body.instructions if i.operation == "reduction"]
    loop = LoopVariable(loop_symbol("r", 0), integer(parts))
    ranges = ranges_for(((loop.symbol, loop.size),))
    ops = BodyRecorder(ranges, dtype_of)  # type: ignore[arg-type]
    value = ops.reduction(
        reduction.arguments[0], reduction.arguments[1], ops.load(partial, loop.symbol)
    )
    index = dot(
        tuple(sympy.S.Zero for _ in layout.size), contiguous_stride(layout.size), sympy.S.Zero
    )
    ops.store(node.writes[0], index, value)
    body = ops.body()
    reads, writes = body_accesses(body)
    return LoopNode(node.name, (), (loop,), body, reads, writes, node.origins)
