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

MOMENTS = ("welford_mean", "welford_m2")
"""The kinds of a node of moments, whose partial results are joined by Chan's rule."""


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
    kinds = _kinds(node)
    has_moments = kinds == MOMENTS and options.split_rows > 1
    if not has_moments and not (len(kinds) == 1 and kinds[0] in SPLITTABLE):
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


def _kinds(node: LoopNode) -> tuple[str, ...]:
    return tuple(i.arguments[0] for i in node.body.instructions if i.operation == "reduction")


def _reads_columns(node: LoopNode) -> bool:
    """Whether neighbouring results, not neighbouring elements of one, are read side by side."""
    loops = [v for v in node.loops if v.size != 1]
    if not loops:
        return False
    symbols = (loops[-1].symbol, node.reduction_loops[-1].symbol)
    steps = [
        linear_form(index, symbols).coefficients
        for buffer, is_store, index in index_expressions(node.body)
        if buffer is not None and not is_store
    ]
    return any(step[0] == 1 for step in steps) and not any(step[1] == 1 for step in steps)


def _split(node: LoopNode, parts: int, buffers: dict[str, Buffer]) -> list[LoopNode]:
    sizes = (integer(parts), *(v.size for v in node.loops))
    strides = contiguous_stride(sizes)
    partial = {name: f"{name}_partial" for name in node.writes}
    for name, part_name in partial.items():
        _add_buffer(buffers, part_name, buffers[name].layout, sizes)

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
        ops.store(partial[name], place, value)

    Replayer(ops, index, None, store).replay(node.body)
    head = _node(ops, loops, inner, node)
    if len(partial) == 1:
        return [head, _tail(node, buffers[partial[node.name]], dtype_of)]
    length_of_part = product(tuple(v.size for v in inner))
    return [head, *_tail_of_moments(node, length_of_part, buffers, dtype_of)]


def _add_buffer(
    buffers: dict[str, Buffer], name: str, like: Layout, size: tuple[sympy.Expr, ...]
) -> None:
    layout = Layout(like.device, like.dtype, size, contiguous_stride(size))
    buffers[name] = Buffer(name, BufferKind.INTERMEDIATE, layout)


def _node(
    ops: BodyRecorder,
    loops: tuple[LoopVariable, ...],
    reduction_loops: tuple[LoopVariable, ...],
    origin: LoopNode,
) -> LoopNode:
    body = ops.body()
    reads, writes = body_accesses(body)
    return LoopNode(writes[0], loops, reduction_loops, body, reads, writes, origin.origins)


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
    return _node(ops, node.loops, (loop,), node)


def _tail_of_moments(
    node: LoopNode,
    length: sympy.Expr,
    buffers: dict[str, Buffer],
    dtype_of: Callable[[str], torch.dtype],
) -> list[LoopNode]:
    """The nodes that join the moments of parts, each of ``length`` elements.

    The mean of the means is the mean; squared deviations are those within the parts and, ``length`` times,
    those of the parts' means.
    """
    mean, deviations = node.writes
    stores = {
        i.arguments[0]: i.arguments[1] for i in node.body.instructions if i.operation == "store"
    }
    size = tuple(v.size for v in node.loops)
    within, between = f"{deviations}_within", f"{deviations}_between"
    for name in (within, between):
        _add_buffer(buffers, name, buffers[deviations].layout, size)
    partial = buffers[f"{mean}_partial"].layout
    loop = LoopVariable(node.reduction_loops[0].symbol, partial.size[0])
    symbols = tuple(v.symbol for v in node.loops)
    place = dot((loop.symbol, *symbols), partial.stride, sympy.S.Zero)
    kept = dot(symbols, contiguous_stride(size), sympy.S.Zero)
    loops = (loop, *node.loops)
    ops = BodyRecorder(ranges_for(tuple((v.symbol, v.size) for v in loops)), dtype_of)
    value = ops.load(f"{mean}_partial", place)
    for target, where, kind in ((mean, stores[mean], MOMENTS[0]), (between, kept, MOMENTS[1])):
        ops.store(target, where, ops.reduction(kind, partial.dtype, value))
    inside = ops.load(f"{deviations}_partial", place)
    ops.store(within, kept, ops.reduction("sum", partial.dtype, inside))
    reduction = _node(ops, node.loops, (loop,), node)
    ops = BodyRecorder(ranges_for(tuple((v.symbol, v.size) for v in node.loops)), dtype_of)
    count = ops.constant(float(length), partial.dtype)
    total = ops.add(ops.load(within, kept), ops.mul(ops.load(between, kept), count))
    ops.store(deviations, stores[deviations], total)
    return [reduction, _node(ops, node.loops, (), node)]
