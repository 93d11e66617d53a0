"""Nodes of a loop's body for all iterations at once, and nodes that read what was computed so.

A matmul in the body becomes one call for all iterations: rows that follow each other, by one matrix, are one
matmul; matrices that differ by iteration are a batch of matmuls, with the iterations for its first dimension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies.replay import IndexFunction, Replayer, unchanged
from weft_loop_ir.expressions import loop_symbol, to_int
from weft_loop_ir.guesses import EXPANDED_EXTENT
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    BufferView,
    Count,
    ExternCall,
    Loop,
    LoopVariable,
    Region,
)
from weft_loop_ir.loop_graph import (
    LoopGraph,
    LoopNode,
    Node,
    all_items,
    item_reads,
    item_writes,
    touches,
    touches_in_graph,
)
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.dead_stores import without_dead_stores
from weft_loop_ir.schedule.iterations import (
    IterationAccess,
    accesses_in_loop,
    are_independent,
    trip_count,
    value_in,
)
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.schedule.options import ScheduleOptions


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


# -- matmuls -------------------------------------------------------------------------------------------


aten = torch.ops.aten

BATCHES = {
    aten.mm.default: (aten.bmm.default, aten.bmm.out),
    aten.addmm.default: (aten.baddbmm.default, aten.baddbmm.out),
}
"""Matmuls, and those of a batch."""


@dataclass(frozen=True)
class MatmulOfAll:
    """``call`` makes the results of all iterations, side by side in memory: a matrix (or batch) of ``size``.

    ``reads`` are the accesses to what isn't an iteration's own.
    """

    call: ExternCall
    size: tuple[sympy.Expr, ...]
    reads: tuple[IterationAccess, ...]


def matmul_of_all(
    call: ExternCall, count: Count, own: Mapping[str, sympy.Expr], buffers: Mapping[str, Buffer]
) -> MatmulOfAll | None:
    """The matmuls of all iterations as one; None where they aren't.

    ``own`` are the iterations' own buffers, which will have a row for each: of so many elements.
    """
    views = call.arguments
    if call.operator not in BATCHES or call.out_variant is None or call.keywords:
        return None
    (result,) = call.outputs
    if result is None or result not in own or not _is_contiguous(buffers[result]):
        return None
    moving = [_Moving.of(view, count, own) for view in views]
    operands = [operand for operand in moving if operand is not None]
    if len(operands) != len(views):
        return None
    trips = trip_count(count)
    reads = tuple(o.access() for o in operands if o.view.buffer not in own)
    rows, columns = buffers[result].layout.size
    if call.operator is aten.mm.default and operands[1].step == 0:
        stacked = operands[0].stacked(trips)
        if stacked is not None:
            one = replace(call, arguments=(stacked, operands[1].view))
            return MatmulOfAll(one, (trips * rows, columns), reads)
    operator, out_variant = BATCHES[call.operator]
    batch = replace(
        call,
        operator=operator,
        out_variant=out_variant,
        arguments=tuple(operand.batch(trips) for operand in operands),
    )
    return MatmulOfAll(batch, (trips, rows, columns), reads)


@dataclass(frozen=True)
class _Moving:
    """``view``, as it is in the first iteration; each later one begins ``step`` elements behind."""

    view: BufferView
    step: sympy.Expr

    @classmethod
    def of(cls, view: BufferView, count: Count, own: Mapping[str, sympy.Expr]) -> _Moving | None:
        """None where a view moves otherwise, or backwards."""
        if any(count.symbol in e.free_symbols for e in (*view.size, *view.stride)):
            return None
        if view.buffer in own:
            return (
                cls(view, own[view.buffer])
                if count.symbol not in view.offset.free_symbols
                else None
            )
        number = sympy.Dummy(integer=True, nonnegative=True)
        offset = sympy.expand(view.offset.subs(count.symbol, value_in(count, number)))
        step = offset.coeff(number)
        first = sympy.expand(offset - step * number)
        if number in first.free_symbols or not step.is_nonnegative:
            return None
        return cls(replace(view, offset=first), step)

    def access(self) -> IterationAccess:
        """What all iterations read."""
        view = self.view
        strides = tuple(to_int(s) for s in view.stride)
        extents = tuple(to_int(n) for n in view.size)
        return IterationAccess(
            view.buffer, False, to_int(self.step), strides, extents, view.offset, is_opaque=False
        )

    def stacked(self, trips: sympy.Expr) -> BufferView | None:
        """The rows of all iterations as one matrix; None where they don't follow each other."""
        (rows, inner), (stride, unit) = self.view.size, self.view.stride
        if self.step == 0 or not (rows == 1 or sympy.expand(self.step - rows * stride) == 0):
            return None
        stride = self.step if rows == 1 else stride
        return replace(self.view, size=(rows * trips, inner), stride=(stride, unit))

    def batch(self, trips: sympy.Expr) -> BufferView:
        """The matrices of all iterations; a vector, which is added to each row, as matrices of one row."""
        size, stride = self.view.size, self.view.stride
        if len(size) == 1:
            size, stride = (sympy.S.One, *size), (sympy.S.Zero, *stride)
        return replace(self.view, size=(trips, *size), stride=(self.step, *stride))


def _is_contiguous(buffer: Buffer) -> bool:
    layout = buffer.layout
    follows = layout.size[0] == 1 or layout.stride[0] == layout.size[1]
    return bool(layout.stride[1] == 1 and follows)


# -- loops ---------------------------------------------------------------------------------------------


def vectorize_loops(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Replace every loop whose iterations are independent, innermost first, by nodes over all of them.

    Before other loops goes, for all iterations, what costs much and depends on no other iteration.
    ``options.expanded_bytes`` limits the memory that iterations' own buffers may take together.
    """
    if not any(isinstance(node, Region) for node in loop_graph.nodes):
        return loop_graph
    pass_ = _Vectorizer(loop_graph, options)
    nodes = pass_.block(loop_graph.nodes)
    if not pass_.changed:
        return loop_graph
    nodes = without_dead_stores(nodes, pass_.buffers)
    return replace(loop_graph, nodes=nodes, buffers=pass_.buffers)


class _Vectorizer:
    def __init__(self, loop_graph: LoopGraph, options: ScheduleOptions) -> None:
        self.buffers = dict(loop_graph.buffers)
        self.options = options
        self.changed = False
        self.touches = touches_in_graph(loop_graph)

    def block(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        result: list[Node] = []
        for node in nodes:
            if isinstance(node, Region):
                node = node.with_blocks(*map(self.block, node.blocks))
            result += self._loop(node) if isinstance(node, Loop) else [node]
        return tuple(result)

    def _loop(self, loop: Loop) -> Sequence[Node]:
        """The nodes of a loop's iterations; else the loop, after what needs no iteration before it."""
        count = loop.only_count
        if count is None:
            return [loop]
        inside = {name for node in loop.body for name in (*item_reads(node), *item_writes(node))}
        if any(_depends(self.buffers[name], count.symbol) for name in inside):
            return [loop]
        nodes = self._in_parallel(loop, count)
        if nodes is not None:
            return nodes
        trips = trip_count(count)
        first = independent_nodes(loop, count, self._own(loop), self.buffers)
        made = {name for node in first for name in item_writes(node)}
        if not first or not self._has_room(made, trips):
            return [loop]
        iterations = self._iterations(loop, count, made, trips)
        before = [over_iterations(node, iterations, self.buffers) for node in first]
        taken = set(map(id, first))
        rest = [node for node in loop.body if id(node) not in taken]
        loop = replace(loop, body=tuple(in_iteration(n, iterations, self.buffers) for n in rest))
        return [*before, *(self._in_parallel(loop, count) or [loop])]

    def _in_parallel(self, loop: Loop, count: Count) -> list[Node] | None:
        """The nodes of all iterations at once, None where they depend on each other or need much memory."""
        own, trips = self._own(loop), trip_count(count)
        if not (self._is_parallel(loop, count, own, trips) and self._has_room(own, trips)):
            return None
        iterations = self._iterations(loop, count, own, trips)
        return [over_iterations(node, iterations, self.buffers) for node in loop.body]

    def _own(self, loop: Loop) -> set[str]:
        """The buffers that an iteration fills for itself, before it reads them."""
        inside = touches(loop.body)
        return {
            name
            for node in loop.body
            for name in item_writes(node)
            if name not in loop.carried
            and self.buffers[name].kind is BufferKind.INTERMEDIATE
            and inside[name] == self.touches[name]
        }

    def _is_parallel(self, loop: Loop, count: Count, own: Set[str], trips: sympy.Expr) -> bool:
        matmuls = self._matmuls(loop, count, own)
        found = [
            list(matmuls[node.name].reads)
            if isinstance(node, ExternCall) and node.name in matmuls
            else _accesses(node, count)
            for node in loop.body
        ]
        shared = [a for accesses in found for a in accesses or () if a.buffer not in own]
        return None not in found and are_independent(shared, trips)

    def _matmuls(self, loop: Loop, count: Count, own: Set[str]) -> dict[str, MatmulOfAll]:
        """The calls of a loop's body, by name, that are matmuls which one call makes for all iterations."""
        rows = {name: storage_elements(self.buffers[name]) for name in own}
        calls = [node for node in loop.body if isinstance(node, ExternCall)]
        found = {call.name: matmul_of_all(call, count, rows, self.buffers) for call in calls}
        return {name: matmul for name, matmul in found.items() if matmul is not None}

    def _has_room(self, own: Set[str], trips: sympy.Expr) -> bool:
        bytes_ = sum(
            (
                storage_elements(b) * b.layout.dtype.itemsize
                for b in map(self.buffers.get, own)
                if b
            ),
            sympy.S.Zero,
        )
        total = sympy.expand(bytes_ * trips)
        total = total.xreplace(dict.fromkeys(total.free_symbols, EXPANDED_EXTENT))
        return bool(total.is_Integer and total <= self.options.expanded_bytes)

    def _iterations(self, loop: Loop, count: Count, own: Set[str], trips: sympy.Expr) -> Iterations:
        """The iterations of ``loop``, whose ``own`` buffers get a row for each."""
        self.changed = True
        rows = {name: storage_elements(self.buffers[name]) for name in own}
        matmuls = self._matmuls(loop, count, own)
        of_buffer = {matmul.call.outputs[0]: matmul for matmul in matmuls.values()}
        for name in own:
            self.buffers[name] = expanded(self.buffers[name], trips, of_buffer.get(name))
        used = {v.symbol for i in all_items(loop.body) if isinstance(i, LoopNode) for v in i.loops}
        number = next(k for k in range(len(used) + 1) if loop_symbol("i", k) not in used)
        variable = LoopVariable(loop_symbol("i", number), trips)
        return Iterations(count, variable, rows, matmuls)


def _depends(buffer: Buffer, symbol: sympy.Symbol) -> bool:
    layout = buffer.layout
    return any(symbol in n.free_symbols for n in (*layout.size, *layout.stride))


def _accesses(
    node: Node, count: Count, around: Sequence[LoopVariable] = ()
) -> list[IterationAccess] | None:
    """The accesses of a node in a loop's body; None where it can't run for all iterations at once.

    ``around`` are the loops between, whose counters are numbers of iterations.
    """
    if isinstance(node, LoopNode):
        loops = (*around, *node.all_loops)
        if any(count.symbol in v.size.free_symbols for v in loops):
            return None
        if count.symbol in node.body.host_symbols:
            return None
        return list(accesses_in_loop(node.body, count, loops))
    inner_count = node.only_count if isinstance(node, Loop) else None
    if not isinstance(node, Loop) or inner_count is None or not _counts_up(inner_count):
        return None
    variable = LoopVariable(inner_count.symbol, trip_count(inner_count))
    found: list[IterationAccess] = []
    for inner in node.body:
        accesses = _accesses(inner, count, (*around, variable))
        if accesses is None:
            return None
        found += accesses
    return found


def independent_nodes(
    loop: Loop, count: Count, own: Set[str], buffers: Mapping[str, Buffer]
) -> list[Node]:
    """The matmuls and reductions of a body that need nothing of other iterations, after what they need.

    They are computed before the loop, for all iterations: rows by one matrix are one matmul.
    """
    if count.step != 1 or any(isinstance(node, Region) for node in loop.body):
        return []
    written = Counter(name for node in loop.body for name in item_writes(node))
    known: dict[str, Node] = {}
    wanted: list[Node] = []
    for node in loop.body:
        reads, writes = item_reads(node), item_writes(node)
        if any(written[name] and name not in known for name in reads):
            continue
        if any(name not in own or written[name] > 1 for name in writes):
            continue
        if isinstance(node, ExternCall):
            rows = {name: storage_elements(buffers[name]) for name in writes if name in own}
            is_matmul = matmul_of_all(node, count, rows, buffers) is not None
            if not is_matmul or any(name in known for name in reads):
                continue
        elif _accesses(node, count) is None:
            continue
        for name in writes:
            known[name] = node
        if isinstance(node, ExternCall) or (isinstance(node, LoopNode) and node.reduction_loops):
            wanted.append(node)
    needed = list(wanted)
    for node in needed:  # grows
        needed += [known[name] for name in item_reads(node) if name in known]
    taken = set(map(id, needed))
    return [node for node in loop.body if id(node) in taken]


def _counts_up(count: Count) -> bool:
    """Whether a counter is the number of its iteration."""
    return bool(count.start == 0 and count.step == 1)
