"""The dependency graph of groups and extern calls, kept in topological order under fusion.

Fusing two nodes contracts an edge.  The order is repaired within the affected region only (Pearce and
Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2007), which keeps the whole of
fusion near-linear; the same search shows whether the contraction would make a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from weft_loop_ir._torch import must_keep
from weft_loop_ir.data_symbols import definitions, item_symbols
from weft_loop_ir.ir import Buffer, ExternCall, Kernel, Region
from weft_loop_ir.loop_graph import (
    LoopNode,
    Node,
    all_items,
    has_effect,
    item_reads,
    item_writes,
    raises_by_value,
)
from weft_loop_ir.schedule.groups import Group, group_of_node


class Dependencies:
    """What has to run before what; nodes are integers, their positions.

    ``successors`` have to run after a node, ``predecessors`` before it.  A loop node that writes nothing
    checks positions: all that follows relies on them.  What changes something comes after the calls before
    it that may raise.
    """

    def __init__(self, nodes: Sequence[Node], buffers: Mapping[str, Buffer] | None = None) -> None:
        self.successors: dict[int, set[int]] = {}
        self.predecessors: dict[int, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        self.readers: dict[str, set[int]] = {}
        last_effect: int | None = None
        checks: list[int] = []
        raising: list[int] = []
        for key, node in enumerate(nodes):
            self._add(key, node)
            for check in checks:
                self._edge(check, key)
            if raising and has_effect(node, buffers or {}):
                for call in raising:
                    self._edge(call, key)
            if raises_by_value(node) and buffers is not None:
                raising.append(key)
            if isinstance(node, LoopNode) and not node.writes:
                checks.append(key)
            calls = [i for i in all_items([node]) if isinstance(i, ExternCall)]
            if any(must_keep(call.operator) for call in calls):
                if last_effect is not None:
                    self._edge(last_effect, key)
                last_effect = key
        self._order_by_symbols(nodes, buffers or {})

    def _order_by_symbols(self, nodes: Sequence[Node], buffers: Mapping[str, Buffer]) -> None:
        """Let what uses a size or number that depends on data stay behind the call that gives it.

        And before one that gives it anew, as at the end of an iteration.
        """
        givers: dict[sympy.Symbol, dict[int, None]] = {}
        for key, node in enumerate(nodes):
            for _, definition in definitions([node]):
                givers.setdefault(definition.symbol, {})[key] = None
        for key, node in enumerate(nodes) if givers else ():
            for symbol in item_symbols(node, buffers) & givers.keys():
                for giver in givers[symbol]:
                    if giver != key:
                        self._edge(min(giver, key), max(giver, key))

    def _add(self, key: int, node: Node) -> None:
        self.successors[key], self.predecessors[key] = set(), set()
        reads, writes = item_reads(node), item_writes(node)
        for name in reads:
            for writer in self.writers.get(name, ()):
                self._edge(writer, key)
            self.readers.setdefault(name, set()).add(key)
        for name in writes:
            for earlier in self.writers.get(name, set()) | self.readers.get(name, set()):
                if earlier != key:
                    self._edge(earlier, key)
            self.writers.setdefault(name, set()).add(key)

    def _edge(self, source: int, target: int) -> None:
        self.successors[source].add(target)
        self.predecessors[target].add(source)


class DependencyGraph(Dependencies):
    """Dependencies of nodes that are fused.

    ``payload`` maps a node to a :class:`Group`, a call, a region or a loop's kernel.
    """

    def __init__(self, nodes: Sequence[Node], buffers: Mapping[str, Buffer] | None = None) -> None:
        super().__init__(nodes, buffers)
        self.payload: dict[int, Group | ExternCall | Region | Kernel] = {
            key: group_of_node(node, key) if isinstance(node, LoopNode) else node
            for key, node in enumerate(nodes)
        }
        self.rank = {key: key for key in range(len(nodes))}
        self._next = len(nodes)

    def contract(self, first: int, second: int, fused: Group, max_search: int) -> int | None:
        """Replace two nodes, ``first`` before ``second`` in the order, by ``fused``; gives its key.

        None, with nothing changed, if a path through a third node joins them, or if ``max_search`` visits
        don't suffice to tell.
        """
        low, high = self.rank[first], self.rank[second]
        after = self._reach(first, second, high, True, max_search)
        if after is None:
            return None
        before = self._reach(second, first, low, False, max_search)
        if before is None:
            return None
        key = self._next
        self._next += 1
        slots = sorted([low, high] + [self.rank[n] for n in after | before])
        sequence = sorted(before, key=self.rank.__getitem__) + [key]
        following = sorted(after, key=self.rank.__getitem__)
        self._replace(first, second, key, fused)
        for node, slot in zip(sequence, slots, strict=False):
            self.rank[node] = slot
        for node, slot in zip(reversed(following), reversed(slots), strict=False):
            self.rank[node] = slot
        return key

    def _reach(
        self, start: int, other: int, bound: int, forward: bool, max_search: int
    ) -> set[int] | None:
        """Nodes strictly between the two in the order that ``start`` reaches, ``other`` not among them."""
        step = self.successors if forward else self.predecessors
        found: set[int] = set()
        pending = [start]
        while pending:
            node = pending.pop()
            for neighbour in step[node]:
                if neighbour == other:
                    if node != start:
                        return None
                    continue
                beyond = self.rank[neighbour] > bound if forward else self.rank[neighbour] < bound
                if beyond or neighbour in found:
                    continue
                found.add(neighbour)
                pending.append(neighbour)
                if len(found) > max_search:
                    return None
        return found

    def _replace(self, first: int, second: int, key: int, fused: Group) -> None:
        both = {first, second}
        self.predecessors[key] = (self.predecessors[first] | self.predecessors[second]) - both
        self.successors[key] = (self.successors[first] | self.successors[second]) - both
        for source in self.predecessors[key]:
            self.successors[source] -= both
            self.successors[source].add(key)
        for target in self.successors[key]:
            self.predecessors[target] -= both
            self.predecessors[target].add(key)
        for old in (first, second):
            del self.successors[old], self.predecessors[old]
            self.rank.pop(old)
            group = self.payload.pop(old)
            assert isinstance(group, Group)
            for name in group.reads:
                self.readers[name].discard(old)
            for name in group.writes:
                self.writers[name].discard(old)
        self.payload[key] = fused
        for name in fused.reads:
            self.readers.setdefault(name, set()).add(key)
        for name in fused.writes:
            self.writers.setdefault(name, set()).add(key)

    def ordered(self) -> list[Group | ExternCall | Region | Kernel]:
        """Groups, extern calls and regions in an order of execution."""
        return [self.payload[key] for key in sorted(self.payload, key=self.rank.__getitem__)]
