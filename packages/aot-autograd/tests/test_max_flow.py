"""Sides of minimum cuts beside every set of vertices."""

from __future__ import annotations

import itertools
import random

import pytest
from weft_aot_autograd.partition.max_flow import FlowNetwork, Unbounded

Edge = tuple[int, int, int | None]


def _cost(edges: list[Edge], far: set[int]) -> float:
    """What crosses from outside of ``far`` into it."""
    crossing = [c for start, end, c in edges if start not in far and end in far]
    return sum(float("inf") if c is None else c for c in crossing)


@pytest.mark.parametrize("seed", range(60))
def test_sides_beside_every_choice(seed: int) -> None:
    chosen = random.Random(seed)
    size = chosen.randint(2, 8)
    source, sink = chosen.sample(range(size), 2)
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b and chosen.random() < 0.4]
    edges: list[Edge] = [
        (a, b, None if chosen.random() < 0.2 else chosen.randint(0, 6)) for a, b in pairs
    ]
    network = FlowNetwork(size, source, sink)
    for edge in edges:
        network.add_edge(*edge)
    others = [v for v in range(size) if v not in (source, sink)]
    sides = [
        {sink, *some} for n in range(len(others) + 1) for some in itertools.combinations(others, n)
    ]
    least = min(_cost(edges, side) for side in sides)
    if least == float("inf"):
        with pytest.raises(Unbounded):
            network.sink_side()
        return
    best = [side for side in sides if _cost(edges, side) == least]
    assert network.sink_side() == set.intersection(*best)


def test_flow_is_taken_back() -> None:
    """The shortest path fills what both longer ones need."""
    network = FlowNetwork(6, 0, 5)
    for start, end in ((0, 1), (1, 4), (4, 5), (0, 2), (2, 4), (1, 3), (3, 5)):
        network.add_edge(start, end, 1)
    assert network.sink_side() == {5}


def test_a_path_as_long_as_a_program() -> None:
    network = FlowNetwork(20_001, 0, 20_000)
    for vertex in range(20_000):
        network.add_edge(vertex, vertex + 1, 1 if vertex == 9_000 else 2)
    assert network.sink_side() == set(range(9_001, 20_001))
