"""Loops that data ends, inside one kernel: where each element may go on until it is done itself.

A loop such as ``while (n > 1).any()`` ends when no element goes on.  If its body leaves an element as it is
once that element doesn't, all elements may run by themselves, each for as many iterations as it needs.
That it does is proved on the recorded body: with the element's test known to fail, what it stores is what
it has loaded.  A loop over single numbers needs no proof.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import sympy

from weft_loop_ir.bodies import Constant, Store
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    Kernel,
    LocalBuffer,
    Loop,
    LoopVariable,
    Region,
    Stage,
)
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node, all_items, item_reads, item_writes
from weft_loop_ir.schedule.element_bodies import (
    Unproved,
    common_loops,
    copied_state,
    local_name,
    record_element,
)
from weft_loop_ir.schedule.element_proofs import check_that_each_ends
from weft_loop_ir.schedule.iterations import (
    ONCE,
    IterationAccess,
    accesses_in_loop,
    covers,
    keep_to_themselves,
    trip_count,
)
from weft_loop_ir.schedule.memory_plan import storage_elements


def element_loops(loop_graph: LoopGraph) -> LoopGraph:
    """Replace every loop that ends by what its elements hold, and whose elements are apart, by a kernel."""
    if not any(isinstance(node, Region) for node in loop_graph.nodes):
        return loop_graph
    reads = _reads(loop_graph.nodes)
    reads.update(o.buffer for o in loop_graph.outputs if isinstance(o, BufferView))
    return replace(loop_graph, nodes=_block(loop_graph.nodes, loop_graph.buffers, reads, False))


def _block(
    nodes: Sequence[Node], buffers: Mapping[str, Buffer], later: Counter[str], is_repeated: bool
) -> tuple[Node, ...]:
    """The nodes of a block; ``later`` counts the reads of each buffer in it and after it.

    Where the block ``is_repeated``, what comes first in it comes later as well.
    """
    result: list[Node] = []
    filled: dict[str, float] = {}  # buffers that hold one number
    for position, node in enumerate(nodes):
        if isinstance(node, Branch):
            node = node.with_blocks(*(_block(b, buffers, later, is_repeated) for b in node.blocks))
        elif isinstance(node, Loop):
            node = replace(node, body=_block(node.body, buffers, later, True))
            with contextlib.suppress(Unproved):
                node = _ElementLoop(node, buffers, later - _reads([node]), filled).kernel()
        if not is_repeated:
            later = later - _reads([nodes[position]])
        for name in item_writes(node):
            filled.pop(name, None)
        if isinstance(node, LoopNode):
            filled.update(_fills(node, buffers))
        result.append(node)
    return tuple(result)


def _fills(node: LoopNode, buffers: Mapping[str, Buffer]) -> dict[str, float]:
    """The buffers that ``node`` fills with one number, and the number."""
    first, *rest = node.body.instructions
    accesses = accesses_in_loop(node.body, ONCE, node.loops)
    if not isinstance(first, Constant) or not all(isinstance(i, Store) for i in rest):
        return {}
    number = float(first.number)
    return {a.buffer: number for a in accesses if covers(a, storage_elements(buffers[a.buffer]))}


def _reads(nodes: Sequence[Node]) -> Counter[str]:
    """How many nodes and predicates read each buffer, at any depth."""
    found: Counter[str] = Counter()
    for item in all_items(nodes):
        if not isinstance(item, Region):
            found.update(item_reads(item))
        elif item.predicate is not None:
            found[item.predicate.buffer] += 1
    return found


class _ElementLoop:
    """One loop.  Raises :class:`Unproved` where it has to stay one of the host program."""

    def __init__(
        self,
        loop: Loop,
        buffers: Mapping[str, Buffer],
        read_elsewhere: Counter[str],
        filled: Mapping[str, float],
    ) -> None:
        if loop.predicate is None or loop.condition:
            raise Unproved
        self.loop = loop
        self.flag = loop.predicate.buffer
        self.buffers = buffers
        self.nodes = [node for node in loop.body if isinstance(node, LoopNode)]
        if len(self.nodes) != len(loop.body) or buffers[self.flag].layout.size:
            raise Unproved
        self.outer = common_loops(self.nodes)
        self._check_counter()
        self.body = record_element(self.nodes, self.outer, buffers, loop.count, in_kernel=False)
        self.kept = [n for n in self.body.last if read_elsewhere[n] or self._is_seen(n)]
        names = dict.fromkeys((*self.body.first, *self.kept, self.flag))
        self.state = tuple(names)
        positive = {n for n, number in filled.items() if math.copysign(1, number) > 0}
        self._check_state(positive)

    def _is_seen(self, name: str) -> bool:
        """Whether the caller sees the buffer."""
        return self.buffers[name].kind is not BufferKind.INTERMEDIATE

    def _check_counter(self) -> None:
        """The counter has a last value or isn't used, and no number of the host depends on it."""
        count = self.loop.count
        if count is None:
            return
        hosts = [node.body.host_symbols for node in self.nodes]
        sizes = [v.size.free_symbols for v in self.outer]
        if count.stop is None or any(count.symbol in symbols for symbols in (*hosts, *sizes)):
            raise Unproved

    def _check_state(self, not_minus_zero: Set[str]) -> None:
        body, loop = self.body, self.loop
        if self.flag not in body.last or not self.kept:
            raise Unproved
        if not set(self.state) <= {*loop.carried}:
            raise Unproved
        if any(body.counter & place.free_symbols for place in body.places.values()):
            raise Unproved
        if not self.outer:
            return
        of_each = [name for name in self.state if body.places[name].free_symbols]
        if not set(self.kept) <= set(of_each):
            raise Unproved  # all elements would write to one place
        if any(node.body.checks_positions for node in self.nodes):
            raise Unproved  # one that is over goes on beside those that aren't
        if not keep_to_themselves(self._accesses(of_each), sympy.S.One):
            raise Unproved
        check_that_each_ends(body, self.flag, of_each, not_minus_zero)

    def _accesses(self, names: Sequence[str]) -> Sequence[IterationAccess]:
        return [
            access
            for inwards in (True, False)
            for access in accesses_in_loop(self._copies(names, inwards).body, ONCE, self.outer)
            if access.buffer in self.buffers
        ]

    # -- the kernel --------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Read the state, run the iterations, write what is needed of it."""
        stages = (
            self._copies(self.state, True),
            self._iterations(),
            self._copies(self.kept, False),
        )
        local = tuple(
            LocalBuffer(local_name(name), self.buffers[name].layout.dtype, sympy.S.One)
            for name in self.state
        )
        reads = dict.fromkeys(name for stage in stages for name in stage.body.reads)
        return Kernel(
            self.loop.name,
            self.outer,
            stages,
            local,
            tuple(name for name in reads if name in self.buffers),
            tuple(self.kept),
            tuple(dict.fromkeys(o for node in self.nodes for o in node.origins)),
        )

    def _copies(self, names: Sequence[str], inwards: bool) -> Stage:
        """The stage that reads state into local buffers, or the one that writes it."""
        places = {name: self.body.places[name] for name in names}
        return copied_state(places, self.buffers, self.outer, inwards=inwards)

    def _iterations(self) -> Stage:
        count, number = self.loop.count, None
        if count is not None:
            number = LoopVariable(loop_symbol("r", 0), trip_count(count))
        body = record_element(self.nodes, self.outer, self.buffers, count, number, in_kernel=True)
        for name in self.state:
            body.ops.store(local_name(name), sympy.S.Zero, body.last[name])
        return Stage(
            () if number is None else (number,),
            without_unused(body.ops.body()),
            is_sequential=True,
            goes_on=local_name(self.flag),
        )
