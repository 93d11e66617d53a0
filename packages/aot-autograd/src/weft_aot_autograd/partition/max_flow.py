"""The largest flow through a network of integer capacities, by Dinic's algorithm."""

from __future__ import annotations


class FlowNetwork:
    """Nodes are numbers from 0 on.  An edge and its reverse follow each other: ``edge ^ 1`` is the other."""

    def __init__(self, nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]  # that leave a node
        self._heads: list[int] = []
        self._left: list[int] = []  # of the capacity

    def add(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        self._edges[tail].append(len(self._heads))
        self._edges[head].append(len(self._heads) + 1)
        self._heads += (head, tail)
        self._left += (capacity, 0)

    def fill(self, source: int, sink: int) -> int:
        """Let as much flow as there can be; how much that is."""
        total = 0
        while (levels := self._levels(source, sink)) is not None:
            total += self._block(levels, source, sink)
        return total

    def reaching(self, sink: int) -> set[int]:
        """The nodes from which more could flow to ``sink``: the same ones for every largest flow."""
        found, waiting = {sink}, [sink]
        for node in waiting:  # grows as it is walked
            for edge in self._edges[node]:
                tail = self._heads[edge]
                if self._left[edge ^ 1] and tail not in found:
                    found.add(tail)
                    waiting.append(tail)
        return found

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """How many edges each node is from ``source``, -1 for far ones; None if ``sink`` is out of reach."""
        levels = [-1] * len(self._edges)
        levels[source] = 0
        waiting = [source]
        for node in waiting:  # grows as it is walked
            for edge in self._edges[node]:
                head = self._heads[edge]
                if self._left[edge] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    if head == sink:
                        return levels
                    waiting.append(head)
        return None

    def _block(self, levels: list[int], source: int, sink: int) -> int:
        """Let flow along paths that get one level further by each edge, until each has a full edge."""
        heads, left = self._heads, self._left
        untried = [iter(edges) for edges in self._edges]
        path: list[int] = []
        node, total = source, 0
        while True:
            if node == sink:
                amount = min(left[edge] for edge in path)
                total += amount
                for edge in path:
                    left[edge] -= amount
                    left[edge ^ 1] += amount
                full = next(k for k, edge in enumerate(path) if not left[edge])
                node = heads[path[full] ^ 1]
                del path[full:]
            for edge in untried[node]:
                if left[edge] and levels[heads[edge]] == levels[node] + 1:
                    path.append(edge)
                    node = heads[edge]
                    break
            else:
                if not path:
                    return total
                levels[node] = -1
                node = heads[path.pop() ^ 1]
