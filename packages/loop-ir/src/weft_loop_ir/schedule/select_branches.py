"""Branches whose sides are little work, computed on both sides: what they leave is chosen by ``where``.

Their nodes fuse with those around, and no one waits for the predicate: on a GPU it would have to come back to
the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.bodies import Constant, LoopBody, Store, Value
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.ir import Branch, Buffer, BufferKind, BufferView, Loop, Region, size_hints
from weft_loop_ir.loop_graph import (
    LoopGraph,
    LoopNode,
    Node,
    item_writes,
    touches,
    touches_in_graph,
)
from weft_loop_ir.ops import STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.options import ScheduleOptions


def select_branches(loop_graph: LoopGraph, options: ScheduleOptions) -> LoopGraph:
    """Replace every branch that computes at most ``options.selected_elements``, innermost first.

    One side may be more where the other only sets flags.  Left as they are: branches that call operators or
    add to what is there, and those whose predicate they overwrite.
    """
    if not options.selected_elements or not any(
        isinstance(node, Region) for node in loop_graph.nodes
    ):
        return loop_graph
    pass_ = _Selector(loop_graph, options)
    nodes = pass_.block(loop_graph.nodes, pass_.given)
    return replace(loop_graph, nodes=nodes, buffers=pass_.buffers)


@dataclass(frozen=True)
class _Side:
    """One side of a branch: ``names`` are buffers that its nodes store to under another name.

    ``kept``: buffers of which a store replaces an element only where this side is taken, else by what
    ``old`` has there.
    """

    predicate: BufferView
    is_true: bool
    names: Mapping[str, str]
    kept: Set[str]
    old: Mapping[str, str]

    def load(self, ops: BodyRecorder, name: str, where: sympy.Expr) -> Value:
        return ops.load(self.names.get(name, name), where)

    def store(
        self, ops: BodyRecorder, name: str, where: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        if name in self.kept:
            old = ops.load(self.old.get(name, name), where)
            holds = ops.load(self.predicate.buffer, self.predicate.offset)
            value = _chosen(ops, holds, *((value, old) if self.is_true else (old, value)))
        ops.store(self.names.get(name, name), where, value, mode)

    def masked(self, ops: BodyRecorder, body: LoopBody) -> Value:
        """What ``body`` stores, computed only where this side is taken, else zero."""
        holds = ops.load(self.predicate.buffer, self.predicate.offset)
        stored: list[Value] = []

        def nested(inner: BodyRecorder) -> Value:
            def capture(
                _: BodyRecorder, name: str, where: sympy.Expr, value: Value, mode: str | None
            ) -> None:
                stored.append(value)

            Replayer(inner, load=self.load, store=capture).replay(body)
            (value,) = stored
            return _widened(inner, value)

        value = ops.masked(holds if self.is_true else ops.logical_not(holds), nested, 0)
        return ops.to_dtype(value, ops.buffer_dtype(body.stores()[0].buffer))


class _Selector:
    def __init__(self, loop_graph: LoopGraph, options: ScheduleOptions) -> None:
        self.buffers = dict(loop_graph.buffers)
        self.limit = options.selected_elements
        self.hints = size_hints(loop_graph.symbols)
        self.touches = touches_in_graph(loop_graph)
        self.numbers = itertools.count()
        self.given = {name for name, buffer in self.buffers.items() if buffer.kind.is_given}

    def block(self, nodes: Sequence[Node], written: Set[str]) -> tuple[Node, ...]:
        """The nodes of a block; ``written`` are the buffers that hold something before it."""
        known = set(written)
        result: list[Node] = []
        for node in nodes:
            if isinstance(node, Loop):
                condition = self.block(node.condition, known)
                inside = known.union(*map(item_writes, condition))
                node = replace(node, condition=condition, body=self.block(node.body, inside))
            if isinstance(node, Branch):
                node = node.with_blocks(*(self.block(block, known) for block in node.blocks))
                result += self._selected(node, known) or [node]
            else:
                result.append(node)
            known.update(item_writes(node))
        return tuple(result)

    def _selected(self, branch: Branch, known: Set[str]) -> list[Node] | None:
        """The nodes of both sides; None where the branch has to stay one."""
        nodes = [node for block in branch.blocks for node in block]
        inside = touches(nodes)
        visible = {
            name
            for node in nodes
            for name in item_writes(node)
            if inside[name] != self.touches[name]
        }
        if branch.predicate.buffer in visible or not self._may_run_both(nodes, visible):
            return None
        if not (any(map(_sets_flags, branch.blocks)) or self._is_little(nodes)):
            return None
        fresh = {n for n in visible - known if all(_writes(b, n) for b in branch.blocks)}
        first = {name: self._copy_of(name) for name in sorted(fresh)}
        sides = (
            _Side(branch.predicate, True, first, visible - fresh, {}),
            _Side(branch.predicate, False, {}, visible, first),
        )
        selected = [
            self._one_side(node, side)
            for block, side in zip(branch.blocks, sides, strict=True)
            for node in block
            if isinstance(node, LoopNode)
        ]
        self.touches.subtract(touches([branch]))
        self.touches.update(touches(selected))
        return [*selected]

    def _may_run_both(self, nodes: Sequence[Node], visible: Set[str]) -> bool:
        for node in nodes:
            if not isinstance(node, LoopNode) or node.body.accumulates:
                return False
            if node.body.checks_positions and not _may_be_masked(node):
                return False
            if node.reduction_loops and not visible.isdisjoint(node.writes):
                return False
        return True

    def _is_little(self, nodes: Sequence[Node]) -> bool:
        """Whether ``nodes`` compute few elements, with the sizes that the program was captured with."""
        work = sympy.S.Zero
        for node in nodes:
            assert isinstance(node, LoopNode)
            work += sympy.Mul(*(v.size for v in node.all_loops))
        work = work.xreplace(self.hints)
        return bool(work.is_Integer and work <= self.limit)

    def _copy_of(self, name: str) -> str:
        """A new buffer like ``name``."""
        copy = f"{name}_side{next(self.numbers)}"
        layout = self.buffers[name].layout
        self.buffers[copy] = Buffer(copy, BufferKind.INTERMEDIATE, layout)
        return copy

    def _one_side(self, node: LoopNode, side: _Side) -> LoopNode:
        recorder = BodyRecorder.over(node.all_loops, lambda name: self.buffers[name].layout.dtype)
        if node.body.checks_positions:
            (store,) = node.body.stores()
            value = side.masked(recorder, node.body)
            side.store(recorder, store.buffer, store.index, value, None)
        else:
            Replayer(recorder, load=side.load, store=side.store).replay(node.body)
        return replace(node, body=recorder.body())


def _writes(block: Sequence[Node], name: str) -> bool:
    return any(name in item_writes(node) for node in block)


def _sets_flags(block: Sequence[Node]) -> bool:
    """Whether a side stores constants alone, one at least: it ends a loop, so that the other is the rule."""
    bodies = [n.body for n in block if isinstance(n, LoopNode) and not n.loops]
    are_set = all(isinstance(i, Constant | Store) for body in bodies for i in body.instructions)
    return bool(block) and len(bodies) == len(block) and are_set


def _may_be_masked(node: LoopNode) -> bool:
    """Whether ``node`` computes one value, for a place that doesn't depend on what it reads."""
    stores = node.body.stores()
    is_one = len(stores) == 1 and not node.reduction_loops
    return is_one and node.body.bound_symbols.isdisjoint(stores[0].index.free_symbols)


def _chosen(ops: BodyRecorder, holds: Value, first: Value, second: Value) -> Value:
    dtype = ops.dtype_of(first)
    wide = [_widened(ops, value) for value in (first, second)]
    return ops.to_dtype(ops.where(holds, *wide), dtype)


def _widened(ops: BodyRecorder, value: Value) -> Value:
    """``value`` in a dtype that operations have."""
    return ops.to_dtype(value, torch.float32) if ops.dtype_of(value) in STORAGE_ONLY else value
