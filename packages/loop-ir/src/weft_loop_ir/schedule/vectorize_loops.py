"""Loops whose iterations are independent, as nodes with the iterations for their outermost loop.

This is the horizontal parallelisation of TensorSSA (Ma et al., DAC '24): a write ``out[i] = f(x[i])`` in a
loop becomes one node over all of ``out``, which fuses with its neighbours and runs in parallel.  What an
iteration keeps to itself becomes an array with a row for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    Count,
    ExternCall,
    Loop,
    LoopVariable,
    Region,
    Value,
)
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, all_items, item_reads, item_writes
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.dead_stores import without_dead_stores
from weft_loop_ir.schedule.iterations import (
    IterationAccess,
    accesses_in_loop,
    are_independent,
    host_symbols,
    trip_count,
    value_in,
)
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.transform import Replayer

Node = LoopNode | ExternCall | Region


def vectorize_loops(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Replace every loop whose iterations are independent, innermost first, by nodes over all of them.

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


@dataclass(frozen=True)
class _Iterations:
    """A loop that becomes the loop ``variable`` of its nodes; ``own`` are its iterations' own buffers."""

    count: Count
    variable: LoopVariable
    own: frozenset[str]


class _Vectorizer:
    def __init__(self, loop_graph: LoopGraph, options: ScheduleOptions) -> None:
        self.buffers = dict(loop_graph.buffers)
        self.options = options
        self.changed = False
        self.touches = _touches(loop_graph.nodes)
        self.touches.update(o.buffer for o in loop_graph.outputs if isinstance(o, BufferView))

    def block(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        result: list[Node] = []
        for node in nodes:
            if isinstance(node, Branch):
                blocks = [self.block(b) for b in node.blocks]
                result.append(replace(node, true_block=blocks[0], false_block=blocks[1]))
            elif isinstance(node, Loop):
                blocks = [self.block(b) for b in node.blocks]
                result += self._loop(replace(node, condition=blocks[0], body=blocks[1]))
            else:
                result.append(node)
        return tuple(result)

    def _loop(self, loop: Loop) -> Sequence[Node]:
        """The nodes of a loop's iterations, or the loop itself."""
        iterations = self._iterations(loop)
        if iterations is None:
            return [loop]
        self.changed = True
        for name in iterations.own:
            self._expand(name, iterations.variable.size)
        return [self._vectorized(node, iterations) for node in loop.body]

    def _iterations(self, loop: Loop) -> _Iterations | None:
        """How the iterations of ``loop`` run side by side; None where they can't."""
        count = loop.count
        if count is None or count.stop is None or loop.predicate is not None or loop.condition:
            return None
        inside = _touches(loop.body)
        own = {
            name
            for node in loop.body
            for name in item_writes(node)
            if name not in loop.carried
            and self.buffers[name].kind is BufferKind.INTERMEDIATE
            and inside[name] == self.touches[name]
        }
        if any(_depends(self.buffers[name], count.symbol) for name in inside):
            return None
        found = [_accesses(node, count) for node in loop.body]
        shared = [a for accesses in found for a in accesses or () if a.buffer not in own]
        trips = trip_count(count)
        if None in found or not are_independent(shared, trips) or not self._has_room(own, trips):
            return None
        used = {v.symbol for i in all_items(loop.body) if isinstance(i, LoopNode) for v in i.loops}
        number = next(k for k in range(len(used) + 1) if loop_symbol("i", k) not in used)
        return _Iterations(count, LoopVariable(loop_symbol("i", number), trips), frozenset(own))

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
        return bool(total.is_Integer and total <= self.options.expanded_bytes)

    def _expand(self, name: str, trips: sympy.Expr) -> None:
        buffer = self.buffers[name]
        row = storage_elements(buffer)
        layout = buffer.layout
        layout = replace(layout, size=(trips, *layout.size), stride=(row, *layout.stride))
        self.buffers[name] = replace(buffer, layout=layout)

    def _vectorized(self, node: Node, iterations: _Iterations) -> Node:
        if isinstance(node, Loop):
            body = tuple(self._vectorized(n, iterations) for n in node.body)
            return replace(node, body=body)
        assert isinstance(node, LoopNode)
        variable = iterations.variable
        loops = (variable, *node.loops)
        ranges = ranges_for(tuple((v.symbol, v.size) for v in loops + node.reduction_loops))
        recorder = BodyRecorder(ranges, self._dtype_of)
        value = {iterations.count.symbol: value_in(iterations.count, variable.symbol)}

        def index(expression: sympy.Expr) -> sympy.Expr:
            if iterations.count.symbol not in expression.free_symbols:
                return expression
            return ranges.simplify(sympy.expand_mul(expression.xreplace(value)))

        def place(name: str, where: sympy.Expr) -> sympy.Expr:
            if name not in iterations.own:
                return where
            return where + self.buffers[name].layout.stride[0] * variable.symbol

        def load(ops: BodyRecorder, name: str, where: sympy.Expr) -> Value:
            return ops.load(name, place(name, where))

        def store(
            ops: BodyRecorder, name: str, where: sympy.Expr, stored: Value, mode: str | None
        ) -> None:
            ops.store(name, place(name, where), stored, mode)

        Replayer(recorder, index, load, store).replay(node.body)
        return replace(node, loops=loops, body=recorder.body())

    def _dtype_of(self, name: str) -> torch.dtype:
        return self.buffers[name].layout.dtype


def _touches(nodes: Sequence[Node]) -> Counter[str]:
    """How many nodes, extern calls and regions' own parts touch each buffer, at any depth."""
    found: Counter[str] = Counter()
    for item in all_items(nodes):
        if isinstance(item, Branch):
            found[item.predicate.buffer] += 1
        elif isinstance(item, Loop):
            found.update(item.carried)
            if item.predicate is not None:
                found[item.predicate.buffer] += 1
        else:
            found.update({*item_reads(item), *item_writes(item)})
    return found


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
        loops = (*around, *node.loops, *node.reduction_loops)
        if any(count.symbol in v.size.free_symbols for v in loops):
            return None
        if any(count.symbol in symbols for symbols in host_symbols(node.body)):
            return None
        return list(accesses_in_loop(node.body, count, loops))
    if not isinstance(node, Loop) or node.count is None or node.count.stop is None:
        return None
    if node.predicate is not None or node.condition or not _counts_up(node.count):
        return None
    variable = LoopVariable(node.count.symbol, trip_count(node.count))
    found: list[IterationAccess] = []
    for inner in node.body:
        accesses = _accesses(inner, count, (*around, variable))
        if accesses is None:
            return None
        found += accesses
    return found


def _counts_up(count: Count) -> bool:
    """Whether a counter is the number of its iteration."""
    return bool(count.start == 0 and count.step == 1)
