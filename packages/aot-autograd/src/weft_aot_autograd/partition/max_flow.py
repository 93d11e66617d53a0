"""Maximum flows: which vertices of a network are on the sink's side of a minimum cut.

Flow goes along shortest paths, all of one length at a time.
"""

from __future__ import annotations

from collections import deque


class Unbounded(Exception):
    """A path from the source to the sink has no edge of a finite capacity."""


class FlowNetwork:
    """A directed network of numbered vertices whose edges have capacities, None for no limit."""

    def __init__(self, size: int, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._edges: list[list[int]] = [[] for _ in range(size)]  # by the vertex that they leave
        # Each edge is followed by the one against it, by which flow is taken back.
        self._to: list[int] = []
        self._capacity: list[int | None] = []

    def add_edge(self, start: int, end: int, capacity: int | None = None) -> None:
        for a, b, c in ((start, end, capacity), (end, start, 0)):
            self._edges[a].append(len(self._to))
            self._to.append(b)
            self._capacity.append(c)

    def sink_side(self) -> set[int]:
        """The vertices from which more could flow to the sink in a maximum flow: the fewest of all cuts.

        :raises Unbounded: the flow has no maximum.
        """
        unlimited = [0 if c is not None else 1 for c in self._capacity]
        if self._distances(unlimited)[self._source] >= 0:
            raise Unbounded
        enough = sum(c for c in self._capacity if c is not None) + 1
        room = [enough if c is None else c for c in self._capacity]
        distances = self._distances(room)
        while distances[self._source] >= 0:
            self._fill(room, distances)
            distances = self._distances(room)
        return {vertex for vertex, distance in enumerate(distances) if distance >= 0}

    def _distances(self, room: list[int]) -> list[int]:
        """How many edges with room are between each vertex and the sink, -1 for no path."""
        distances = [-1] * len(self._edges)
        distances[self._sink] = 0
        waiting = deque((self._sink,))
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges[vertex]:
                before = self._to[edge]
                if distances[before] < 0 and room[edge ^ 1]:
                    distances[before] = distances[vertex] + 1
                    waiting.append(before)
        return distances

    def _fill(self, room: list[int], distances: list[int]) -> None:
        """Send what can flow along paths on which each edge is one nearer to the sink."""
        first = [0] * len(self._edges)  # by vertex: the edges before this one lead nowhere
        path: list[int] = []
        vertex = self._source
        while True:
            edge = self._next(vertex, first, room, distances)
            if edge is not None:
                path.append(edge)
                vertex = self._to[edge]
                if vertex == self._sink:
                    vertex = self._send(path, room)
            elif path:  # back: nothing flows from here any more
                distances[vertex] = -1
                vertex = self._to[path.pop() ^ 1]
            else:
                return

    def _next(
        self, vertex: int, first: list[int], room: list[int], distances: list[int]
    ) -> int | None:
        edges, nearer = self._edges[vertex], distances[vertex] - 1
        for place in range(first[vertex], len(edges)):
            edge = edges[place]
            if room[edge] and distances[self._to[edge]] == nearer:
                first[vertex] = place
                return edge
        first[vertex] = len(edges)
        return None

    def _send(self, path: list[int], room: list[int]) -> int:
        """Fill ``path``, and leave of it what is before its first full edge; the vertex there."""
        amount = min(room[edge] for edge in path)
        for edge in path:
            room[edge] -= amount
            room[edge ^ 1] += amount
        full = next(place for place, edge in enumerate(path) if not room[edge])
        vertex = self._to[path[full] ^ 1]
        del path[full:]
        return vertex
