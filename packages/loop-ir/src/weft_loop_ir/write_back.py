"""Mutated inputs whose new values are computed in their own memory, so that nothing is copied back.

And which of a schedule's results nobody sees but the caller.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from weft_loop_ir.bodies import Load, Store, Value
from weft_loop_ir.bodies.edit import with_buffers
from weft_loop_ir.ir import BufferKind, BufferView, ExternCall, Region, Schedule
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, item_reads, item_writes
from weft_loop_ir.schedule.iterations import reads_only_at_store


def write_back(loop_graph: LoopGraph, targets: Mapping[int, int]) -> LoopGraph:
    """Let outputs be computed in inputs' memory: ``targets`` maps positions of outputs to those of inputs.

    Where this is done, the output is the input itself.  The others stay as they are: those that are not
    laid out as the input is, that calls or regions make or regions read, or that are written while old
    elements of the input are still to be read, or before a check of what data decides, which has to leave
    inputs as they are.  Inputs of one call must not share memory.
    """
    rewriting = _Rewriting(loop_graph)
    for output, position in targets.items():
        view, name = loop_graph.outputs[output], loop_graph.inputs[position]
        if isinstance(view, BufferView) and isinstance(name, str) and rewriting.may_be(view, name):
            rewriting.rename(view.buffer, name)
    return rewriting.result()


class _Rewriting:
    """A loop graph whose buffers get other names one after another; nodes are known by position."""

    def __init__(self, loop_graph: LoopGraph) -> None:
        self._graph = loop_graph
        self._nodes = list(loop_graph.nodes)
        calls = [k for k, n in enumerate(self._nodes) if isinstance(n, ExternCall) and n.requires]
        self._last_check = max(calls, default=-1)
        self._buffers = dict(loop_graph.buffers)
        self._names: dict[str, str] = {}
        returned = [o.buffer for o in loop_graph.outputs if isinstance(o, BufferView)]
        self._returned = Counter(returned)
        self._needless: set[int] = set()  # positions of nodes that would copy an input to itself
        self._readers: dict[str, list[int]] = {}
        self._writers: dict[str, list[int]] = {}
        for position, node in enumerate(self._nodes):
            for name in item_reads(node):
                self._readers.setdefault(name, []).append(position)
            for name in item_writes(node):
                self._writers.setdefault(name, []).append(position)

    def may_be(self, view: BufferView, name: str) -> bool:
        """Whether the buffer of ``view`` may be the input ``name``."""
        new = view.buffer
        layout, known = self._buffers[new].layout, self._buffers[name].layout
        whole = view.size == layout.size and view.stride == layout.stride and view.offset == 0
        if not whole or layout != known or new in self._graph.inputs:
            return False
        if self._returned[new] != 1 or self._returned[name] or name in self._writers:
            return False
        writers = self._writers.get(new, [])
        touched = [*writers, *self._readers.get(new, ()), *self._readers.get(name, ())]
        if not writers or any(isinstance(self._nodes[k], Region) for k in touched):
            return False
        if writers[0] < self._last_check:
            return False
        if not all(isinstance(self._nodes[k], LoopNode) for k in writers):
            return False
        return self._reads_old_elements(new, name)

    def _reads_old_elements(self, new: str, name: str) -> bool:
        """Whether the input ``name`` would be read as it was, if the buffer ``new`` were it."""
        readers, writers = self._readers.get(name, ()), self._writers[new]
        is_changed = False
        for position in sorted({*readers, *writers}):
            node, writes = self._nodes[position], position in writers
            if position in readers:
                if is_changed:
                    return False
                if writes and not (isinstance(node, LoopNode) and reads_only_at_store(node, name)):
                    return False
            is_changed |= writes and not _copies_elements(node, name)
        return True

    def rename(self, old: str, new: str) -> None:
        """Let ``new`` stand in the place of the buffer ``old``."""
        self._names[old] = new
        del self._buffers[old]
        for position in self._writers[old]:
            if _copies_elements(self._nodes[position], new):
                self._needless.add(position)
        for positions in (self._readers, self._writers):
            for position in positions.get(old, ()):
                self._nodes[position] = _with_name(self._nodes[position], old, new)
            moved = positions.pop(old, [])
            positions[new] = sorted({*positions.get(new, ()), *moved})

    def result(self) -> LoopGraph:
        outputs = [
            replace(o, buffer=self._names.get(o.buffer, o.buffer))
            if isinstance(o, BufferView)
            else o
            for o in self._graph.outputs
        ]
        nodes = tuple(n for k, n in enumerate(self._nodes) if k not in self._needless)
        return replace(self._graph, nodes=nodes, outputs=tuple(outputs), buffers=self._buffers)


def _copies_elements(node: Any, source: str) -> bool:
    """Whether ``node`` stores elements of ``source`` in the same places of another buffer, no more."""
    if not isinstance(node, LoopNode):
        return False
    if len(node.body.instructions) != 2:
        return False
    load, store = node.body.instructions
    if not (isinstance(load, Load) and isinstance(store, Store)):
        return False
    is_plain = load.buffer == source and store.mode is None
    return is_plain and load.index == store.index and store.value == Value(0)


def _with_name(node: Any, old: str, new: str) -> Any:
    if old not in item_reads(node) and old not in item_writes(node):
        return node
    if isinstance(node, ExternCall):

        def renamed(leaf: Any) -> Any:
            is_old = isinstance(leaf, BufferView) and leaf.buffer == old
            return replace(leaf, buffer=new) if is_old else leaf

        return node.mapped(renamed)
    return replace(node, body=with_buffers(node.body, {old: new}))


# -- private results -----------------------------------------------------------------------------------


def with_private_results(schedule: Schedule, positions: Collection[int]) -> Schedule:
    """``schedule`` whose results at ``positions`` are private: the caller gives them to nobody.

    What backward reads of forward is.  A buffer that other results are made of too is not private.
    """
    made = BufferKind.OUTPUT, BufferKind.INTERMEDIATE
    private: set[str] = set()
    seen: set[str] = set()
    for position, output in enumerate(schedule.outputs):
        if isinstance(output, BufferView):
            (private if position in positions else seen).add(output.buffer)
    names = (name for name in private - seen if schedule.buffers[name].kind in made)
    return dataclasses.replace(schedule, private=frozenset(names))
