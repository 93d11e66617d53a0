"""Several guard sets' trees as one: places and guards that sets share stand in it once.

The order is that of a tree: a place's guards before what is read from it, cheap subtrees first.  So each
set's guards, taken by themselves in this order, are checked as they would be alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from .guard import Guard
from .tree import Access, Node, Tree, predicate_key, rank

Member = tuple[int, Node]  # the tree's number, and its node


@dataclass(eq=False)
class MergedNode:
    """One place, and which trees have it and its guards; trees are bits of an integer."""

    node: Node  # of one of the trees; the value is got alike in all
    above: weakref.ref[MergedNode] | None  # weak, as that of a tree's node
    trees: int = 0
    guards: list[tuple[Guard, int]] = field(default_factory=list)
    children: list[MergedNode] = field(default_factory=list)
    cost: int = 0

    @property
    def parent(self) -> MergedNode | None:
        return None if self.above is None else self.above()

    @property
    def access(self) -> Access:
        return self.node.access


class MergedTree:
    """The trees' nodes, merged; :meth:`nodes` gives them in the order of checking."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._places: dict[Node, MergedNode] = {}
        roots = [
            (number, key, node)
            for number, tree in enumerate(trees)
            for key, node in tree.roots.items()
        ]
        self._roots = self._merge_level(roots, None)

    def place(self, node: Node) -> MergedNode:
        """Where the node of one of the trees is."""
        return self._places[node]

    def nodes(self) -> Iterator[MergedNode]:
        """All nodes, each after its parent."""
        stack = self._roots[::-1]
        while stack:
            merged = stack.pop()
            yield merged
            stack.extend(reversed(merged.children))

    def _merge_level(
        self, nodes: list[tuple[int, Hashable, Node]], parent: MergedNode | None
    ) -> list[MergedNode]:
        groups: dict[Hashable, list[Member]] = {}
        for number, key, node in nodes:
            groups.setdefault(key, []).append((number, node))
        if len(groups) == len(nodes) and all(number == nodes[0][0] for number, _, _ in nodes):
            return [self._alone(number, node, parent) for number, _, node in nodes]
        return sorted((self._merge(members, parent) for members in groups.values()), key=rank)

    def _alone(self, number: int, node: Node, parent: MergedNode | None) -> MergedNode:
        """A place of one tree only: guards and what is below are in order as they are."""
        trees = 1 << number
        merged = MergedNode(node, None if parent is None else weakref.ref(parent), trees)
        self._places[node] = merged
        merged.guards = [(guard, trees) for guard in node.guards]
        merged.children = [self._alone(number, child, merged) for child in node.children.values()]
        merged.cost = node.cost
        return merged

    def _merge(self, members: list[Member], parent: MergedNode | None) -> MergedNode:
        merged = MergedNode(members[0][1], None if parent is None else weakref.ref(parent))
        below: list[tuple[int, Hashable, Node]] = []
        guards: dict[Hashable, tuple[Guard, int]] = {}
        for number, node in members:
            self._places[node] = merged
            merged.trees |= 1 << number
            for guard in node.guards:
                key = predicate_key(guard)
                first, trees = guards.get(key, (guard, 0))
                guards[key] = first, trees | 1 << number
            below.extend((number, key, child) for key, child in node.children.items())
        merged.guards = sorted(guards.values(), key=lambda entry: entry[0].predicate.cost)
        merged.children = self._merge_level(below, merged)
        merged.cost = (
            merged.node.own_cost()
            + sum(guard.predicate.cost for guard, _ in merged.guards)
            + sum(child.cost for child in merged.children)
        )
        return merged
