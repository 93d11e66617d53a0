"""Splitting a large reduction to few results in two kernels: partial results, then their reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.bodies import REDUCTIONS, LoopBody, Value
from weft_loop_ir.bodies.replay import IndexFunction, Replayer, StoreFunction
from weft_loop_ir.expressions import (
    FloorDiv,
    contiguous_stride,
    dot,
    integer,
    loop_symbol,
    product,
    to_int,
    unit_stride,
    unit_strides,
)
from weft_loop_ir.ir import Buffer, BufferKind, Layout, LoopVariable, Stage, size_hints
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.accesses import linear_form
from weft_loop_ir.schedule.loop_order import Nest, with_inner_loops_merged
from weft_loop_ir.schedule.options import ScheduleOptions

PARTS_OF_FEW = 4
"""Where results count as few below some number, so many times that number of partial results are wanted."""

MOMENTS = ("welford_mean", "welford_m2")
"""The kinds of a node of moments, whose partial results are joined by Chan's rule."""


ROWS_OF_PART = 64
"""Short rows in one of the parts that they are reduced in, at least."""


PART_MULTIPLE = 64
"""Parts of what varies begin at multiples of so many elements, so that they can be read side by side."""


Hints = Mapping[sympy.Symbol, sympy.Expr]
"""Sizes in the call that the graph was made for."""


@dataclass(frozen=True)
class _Cut:
    """How a node is split: ``cut`` is the reduced loop that falls in ``parts``.

    ``kept`` are reduced loops that the partial results keep.
    """

    parts: int
    cut: LoopVariable
    kept: tuple[LoopVariable, ...] = ()

    @property
    def length(self) -> sympy.Expr:
        """Of a part.  Where the size varies the last ones may have fewer elements, or none."""
        size = self.cut.size
        if size.is_Integer:
            return integer(int(size) // self.parts)
        step = integer(PART_MULTIPLE * self.parts)
        return PART_MULTIPLE * FloorDiv(size + step - 1, step)


def split_large_reductions(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Split each reduction of ``options.split_reduction_elements`` or more elements to few results.

    So are those of ``options.split_short_rows``, whatever their results.
    """
    limit = options.split_reduction_elements
    if limit is None:
        return loop_graph
    buffers = dict(loop_graph.buffers)
    hints = size_hints(loop_graph.symbols) if options.split_varying else {}
    nodes: list[Node] = []
    for node in loop_graph.nodes:
        parts: Sequence[Node] = (node,)
        if isinstance(node, LoopNode) and _is_splittable(node, options, hints):
            merged, cut = node, _short_rows(node, options)
            if cut is None:
                merged = _with_reduction_merged(node, buffers)
                cut = _parts(merged, limit, options, hints)
            if cut is not None:
                parts = _split(merged, cut, buffers)
        nodes.extend(parts)
    if len(nodes) == len(loop_graph.nodes):
        return loop_graph
    return replace(loop_graph, buffers=buffers, nodes=tuple(nodes))


def _is_splittable(node: LoopNode, options: ScheduleOptions, hints: Hints) -> bool:
    """Whether partial results of ``node`` can be joined, and how many there are is known, or likely."""
    kinds = _kinds(node)
    has_moments = kinds == MOMENTS and (options.split_rows > 1 or options.split_short_rows > 0)
    if not has_moments and not (len(kinds) == 1 and REDUCTIONS[kinds[0]].joins_itself):
        return False
    sizes = [v.size for v in node.all_loops]
    if has_moments and not node.reduction_loops[0].size.is_Integer:
        return False  # parts of one length are joined
    return all(size.xreplace(hints).is_Integer for size in sizes)


def _with_reduction_merged(node: LoopNode, buffers: Mapping[str, Buffer]) -> LoopNode:
    """``node`` with one reduced loop where several act as one, so that it can be cut anywhere.

    Not those of moments where one varies: parts of one length are joined.
    """
    varies = not all(v.size.is_Integer for v in node.reduction_loops)
    if len(node.reduction_loops) == 1 or (varies and _kinds(node) == MOMENTS):
        return node
    stage = Stage(node.reduction_loops, node.body, is_reduction=True)
    nest = Nest(node.loops, node.reduction_loops, (stage,))
    merged = with_inner_loops_merged(nest, lambda name: buffers[name].layout.dtype)
    if merged is nest:
        return node
    (stage,) = merged.stages
    return replace(node, loops=merged.outer, reduction_loops=merged.inner, body=stage.body)


def _parts(node: LoopNode, limit: int, options: ScheduleOptions, hints: Hints) -> _Cut | None:
    """Which reduced loop is cut, and into how many parts; None to leave the node whole."""
    if _kinds(node) == MOMENTS and options.split_rows <= 1:
        return None
    results = int(product(tuple(v.size.xreplace(hints) for v in node.loops)))
    elements = int(product(tuple(v.size.xreplace(hints) for v in node.reduction_loops)))
    most, least = max(options.split_rows, options.split_columns), options.split_column_elements
    if not 0 < results <= most or elements < min(limit, least):
        return None  # however it is read
    few, of_columns = options.split_rows, reads_columns(node, also_rows=True)
    if of_columns:
        few, limit = options.split_columns, options.split_column_elements
    if not 0 < results <= few or elements < limit:
        return None
    wanted = options.split_reduction_parts
    if few > 1:
        wanted = min(wanted, few // results * PARTS_OF_FEW)
    first = node.reduction_loops[0]
    if not first.size.is_Integer:
        parts = max(min(wanted, int(first.size.xreplace(hints)) // PART_MULTIPLE), 1)
        return None if parts == 1 else _Cut(parts, first)
    # Loops that are read in different orders don't act as one: any of them may be the long one.
    loops = [v for v in node.reduction_loops if v.size.is_Integer]
    if of_columns and options.split_column_programs:
        cut = max(loops, key=lambda v: (not _lies_side_by_side(node, v), int(v.size)))
        parts = _parts_of_columns(int(cut.size), elements, results, options)
    else:
        cut = max(loops, key=lambda v: _divisor(int(v.size), wanted))
        parts = _divisor(int(cut.size), wanted)
    return None if parts == 1 else _Cut(parts, cut)


def _parts_of_columns(extent: int, elements: int, results: int, options: ScheduleOptions) -> int:
    """The divisor of ``extent`` that gives about as many programs as run at once, each some columns.

    A program goes through the rows of its part, of ``elements`` in all parts, a tile at a time, of which the
    last may reach beyond them.
    """
    columns, rows = options.split_column_tile

    def loss(parts: int) -> float:
        length = elements // parts
        in_tiles = length / (-(-length // rows) * rows)
        return abs(math.log(parts * results / columns / options.split_column_programs)) - in_tiles

    most = min(options.split_reduction_parts, max(elements // rows, 1))
    return min((k for k in range(1, min(most, extent) + 1) if extent % k == 0), key=loss)


def _divisor(extent: int, wanted: int) -> int:
    """The largest divisor of ``extent`` up to ``wanted``."""
    return next((k for k in range(min(wanted, extent), 1, -1) if extent % k == 0), 1)


def _short_rows(node: LoopNode, options: ScheduleOptions) -> _Cut | None:
    """How to reduce many short rows, between which rows of other results lie (channels-last groups).

    The loop along the rows is kept: the rows of all results together are long ones, added up side by side.
    """
    if len(node.reduction_loops) < 2 or not all(v.size.is_Integer for v in node.all_loops):
        return None
    symbols = tuple(v.symbol for v in node.all_loops)
    forms = [linear_form(load.index, symbols) for load in node.body.loads()]
    split = len(node.loops)
    for position, row in enumerate(node.reduction_loops):
        length = int(row.size)
        others = [v for v in node.reduction_loops if v is not row]
        rows = int(product(tuple(v.size for v in others)))
        follow_each_other = any(
            not form.opaque
            and form.coefficients[split + position] == 1
            and length in form.coefficients[:split]
            for form in forms
        )
        is_short = 1 < length <= options.split_short_rows
        if is_short and follow_each_other and rows >= 2 * ROWS_OF_PART:
            outermost = max(others, key=lambda v: int(v.size) > 1)
            wanted = min(options.split_reduction_parts, rows // ROWS_OF_PART)
            return _Cut(_divisor(int(outermost.size), wanted), outermost, (row,))
    return None


def _kinds(node: LoopNode) -> tuple[str, ...]:
    return tuple(reduction.kind for reduction in node.body.reductions())


def reads_columns(node: LoopNode, *, also_rows: bool = False) -> bool:
    """Whether neighbouring results, not neighbouring elements of one, are read side by side.

    ``also_rows``: or some operands are read so, others along the elements.  What all results read alike, as
    the statistics of the rows that they add up, says nothing, nor what a result reads once, as its maximum.
    """
    loops = [v for v in node.loops if v.size != 1]
    if not loops:
        return False
    symbols = (loops[-1].symbol, node.reduction_loops[-1].symbol)
    elements = {v.symbol for v in node.reduction_loops}
    loads = (
        load.index
        for load in node.body.loads()
        if symbols[0] in load.index.free_symbols and elements & load.index.free_symbols
    )
    by_result, by_element = unit_strides(loads, *symbols)
    return by_result > 0 and (also_rows or not by_element)


def _lies_side_by_side(node: LoopNode, loop: LoopVariable) -> bool:
    """Whether an operand that differs between results has neighbours along ``loop`` side by side."""
    own = {v.symbol for v in node.loops}
    loads = (load.index for load in node.body.loads() if own & load.index.free_symbols)
    return any(unit_stride(index, loop.symbol) for index in loads)


def _split(node: LoopNode, cut: _Cut, buffers: dict[str, Buffer]) -> list[LoopNode]:
    renamed = {v.symbol: loop_symbol("i", len(node.loops) + 1 + k) for k, v in enumerate(cut.kept)}
    kept = tuple(LoopVariable(renamed[v.symbol], v.size) for v in cut.kept)
    sizes = (integer(cut.parts), *(v.size for v in node.loops + kept))
    partial = {name: f"{name}_partial" for name in node.writes}
    for name, part_name in partial.items():
        _add_buffer(buffers, part_name, buffers[name].layout, sizes)

    def dtype_of(name: str) -> torch.dtype:
        return buffers[name].layout.dtype

    part = LoopVariable(loop_symbol("i", len(node.loops)), integer(cut.parts))
    first = cut.cut
    length = cut.length
    inner = tuple(
        LoopVariable(v.symbol, length) if v is first else v
        for v in node.reduction_loops
        if v not in cut.kept
    )
    loops = (part, *node.loops, *kept)
    ops = BodyRecorder.over(loops + inner, dtype_of)
    shifted = {first.symbol: first.symbol + length * part.symbol}
    symbols = (first.symbol,)

    def index(expression: sympy.Expr) -> sympy.Expr:
        expression = expression.xreplace(renamed)
        form = linear_form(expression, symbols)
        if not form.opaque:
            return expression + to_int(form.coefficients[0]) * length * part.symbol
        return expression.xreplace(shifted)

    place = dot(tuple(v.symbol for v in loops), contiguous_stride(sizes), sympy.S.Zero)

    def store(
        ops: BodyRecorder, name: str, where: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        ops.store(partial[name], place, value)

    if first.size.is_Integer:
        Replayer(ops, index, None, store).replay(node.body)
    else:
        place_in_row = first.symbol + length * part.symbol
        _replay_within(
            ops,
            node.body,
            index,
            store,
            ops.lt(
                ops.index_expr(place_in_row, torch.int64), ops.index_expr(first.size, torch.int64)
            ),
        )
    head = _node(ops, loops, inner, node)
    joined = _Joined(node, LoopVariable(first.symbol, integer(cut.parts)), cut.kept)
    if len(partial) == 1:
        return [head, _tail(joined, buffers[partial[node.name]], dtype_of)]
    length_of_part = product(tuple(v.size for v in inner))
    return [head, *_tail_of_moments(joined, length_of_part, buffers, dtype_of)]


def _replay_within(
    ops: BodyRecorder, body: LoopBody, index: IndexFunction, store: StoreFunction, inside: Value
) -> None:
    """Record ``body``, a reduction, which takes no element where ``inside`` is false."""
    (reduction,), (target,) = body.reductions(), body.stores()
    position = body.instructions.index(reduction)
    value_dtype = body.at(reduction.value).dtype
    assert value_dtype is not None
    element = LoopBody(body.instructions[:position], reduction.value)

    def computed(nested: BodyRecorder) -> Value:
        value = Replayer(nested, index).replay(element)
        assert value is not None
        return value

    value = ops.masked(inside, computed, REDUCTIONS[reduction.kind].identity_of(value_dtype))
    result = ops.reduction(reduction.kind, reduction.accumulated, value)
    store(ops, target.buffer, index(target.index), result, None)


@dataclass(frozen=True)
class _Joined:
    """The loops over the partial results of ``node``: its own, inside ``part``, around ``kept``."""

    node: LoopNode
    part: LoopVariable
    kept: tuple[LoopVariable, ...]

    @property
    def reduction_loops(self) -> tuple[LoopVariable, ...]:
        return (self.part, *self.kept)

    @property
    def loops(self) -> tuple[LoopVariable, ...]:
        """In the order of the partial results' dimensions."""
        return (self.part, *self.node.loops, *self.kept)

    def recorder(self, dtype_of: Callable[[str], torch.dtype]) -> BodyRecorder:
        return BodyRecorder.over(self.loops, dtype_of)

    def place(self, partial: Layout) -> sympy.Expr:
        return dot(tuple(v.symbol for v in self.loops), partial.stride, sympy.S.Zero)


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
    return LoopNode(body.writes[0], loops, reduction_loops, body, origin.origins, origin.block)


def _tail(joined: _Joined, partial: Buffer, dtype_of: Callable[[str], torch.dtype]) -> LoopNode:
    """The node that reduces the parts and stores the results where the node did."""
    node = joined.node
    (reduction,), (target,) = node.body.reductions(), node.body.stores()
    ops = joined.recorder(dtype_of)
    part = ops.load(partial.name, joined.place(partial.layout))
    value = ops.reduction(reduction.kind, reduction.accumulated, part)
    ops.store(target.buffer, target.index, value)
    return _node(ops, node.loops, joined.reduction_loops, node)


def _tail_of_moments(
    joined: _Joined,
    length: sympy.Expr,
    buffers: dict[str, Buffer],
    dtype_of: Callable[[str], torch.dtype],
) -> list[LoopNode]:
    """The nodes that join the moments of parts, each of ``length`` elements.

    The mean of the means is the mean; squared deviations are those within the parts and, ``length`` times,
    those of the parts' means.
    """
    node = joined.node
    mean, deviations = node.writes
    stores = {store.buffer: store.index for store in node.body.stores()}
    size = tuple(v.size for v in node.loops)
    within, between = f"{deviations}_within", f"{deviations}_between"
    for name in (within, between):
        _add_buffer(buffers, name, buffers[deviations].layout, size)
    partial = buffers[f"{mean}_partial"].layout
    place = joined.place(partial)
    symbols = tuple(v.symbol for v in node.loops)
    kept = dot(symbols, contiguous_stride(size), sympy.S.Zero)
    ops = joined.recorder(dtype_of)
    value = ops.load(f"{mean}_partial", place)
    for target, where, kind in ((mean, stores[mean], MOMENTS[0]), (between, kept, MOMENTS[1])):
        ops.store(target, where, ops.reduction(kind, partial.dtype, value))
    inside = ops.load(f"{deviations}_partial", place)
    ops.store(within, kept, ops.reduction("sum", partial.dtype, inside))
    reduction = _node(ops, node.loops, joined.reduction_loops, node)
    ops = BodyRecorder.over(node.loops, dtype_of)
    if length.is_Integer:
        count = ops.constant(float(length), partial.dtype)
    else:
        count = ops.to_dtype(ops.index_expr(length, torch.int64), partial.dtype)
    total = ops.add(ops.load(within, kept), ops.mul(ops.load(between, kept), count))
    ops.store(deviations, stores[deviations], total)
    return [reduction, _node(ops, node.loops, (), node)]
