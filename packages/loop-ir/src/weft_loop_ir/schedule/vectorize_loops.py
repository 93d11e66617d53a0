"""Loops whose iterations are independent, as nodes with the iterations for their outermost loop.

This is the horizontal parallelisation of TensorSSA (Ma et al., DAC '24): a write ``out[i] = f(x[i])`` in a
loop becomes one node over all of ``out``, which fuses with its neighbours and runs in parallel.  What an
iteration keeps to itself becomes an array with a row for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import sympy

from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.guesses import EXPANDED_EXTENT
from weft_loop_ir.ir import Buffer, BufferKind, Count, ExternCall, Loop, LoopVariable, Region
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
from weft_loop_ir.schedule.dead_stores import without_dead_stores
from weft_loop_ir.schedule.expand_nodes import Iterations, expanded, in_iteration, over_iterations
from weft_loop_ir.schedule.iterations import (
    IterationAccess,
    accesses_in_loop,
    are_independent,
    trip_count,
)
from weft_loop_ir.schedule.matmuls_of_iterations import MatmulOfAll, matmul_of_all
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.schedule.options import ScheduleOptions


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
