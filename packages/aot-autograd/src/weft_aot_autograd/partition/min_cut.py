"""The cheapest set of values that separates what is given from what is needed, by minimum cuts.

Each value is split into an edge whose capacity is its size; a cut through the edge saves the value.  Before
any flow is computed the network is reduced: values that must be saved, and what they shield, are left out,
and what remains falls apart into components.  In programs of layers these are small, so that the time is
near-linear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from .max_flow import FlowNetwork

_SOURCE, _SINK = 0, 1


@dataclass(frozen=True)
class CutProblem:
    """Values are numbered in a topological order.

    ``capacity[v]`` is the cost of saving ``v``, None if it can't be saved; ``users[v]`` are the values
    computed from it; ``given`` can't be computed again, ``needed`` are read beyond the cut.
    """

    capacity: Sequence[int | None]
    users: Sequence[Sequence[int]]
    given: Set[int]
    needed: Set[int]


class NoCut(Exception):
    """A value that is needed can neither be saved nor computed again."""


def minimum_cut(problem: CutProblem) -> list[int]:
    """The values to save, ascending: least in total capacity, of these the nearest to what needs them."""
    useful = _reaching(problem)
    forced = {v for v in problem.given & problem.needed if v in useful}
    if any(problem.capacity[v] is None for v in forced):
        raise NoCut
    open_values = _reached(problem, useful - forced)
    edges = {
        v: [u for u in problem.users[v] if u in open_values and u not in problem.given]
        for v in sorted(open_values)
    }
    saved = set(forced)
    for component in _components(edges):
        saved |= _cut_component(problem, component, edges)
    return sorted(saved)


def _reaching(problem: CutProblem) -> set[int]:
    """Values from which something needed is computed without passing a value that is given."""
    useful: set[int] = set()
    for v in reversed(range(len(problem.users))):
        if v in problem.needed or any(
            u in useful and u not in problem.given for u in problem.users[v]
        ):
            useful.add(v)
    return useful


def _reached(problem: CutProblem, values: Set[int]) -> set[int]:
    """Those of ``values`` that depend on a given one; the others are computed from what is saved."""
    reached: set[int] = set()
    for v in sorted(values):
        if v in problem.given:
            reached.add(v)
        if v in reached:
            reached.update(u for u in problem.users[v] if u in values and u not in problem.given)
    return reached


def _components(edges: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Weakly connected components, each ascending, in the order of their first value."""
    neighbours: dict[int, list[int]] = {v: list(users) for v, users in edges.items()}
    for v, users in edges.items():
        for u in users:
            neighbours[u].append(v)
    seen: set[int] = set()
    components = []
    for start in edges:
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for v in component:  # grows as it is walked
            fresh = [u for u in dict.fromkeys(neighbours[v]) if u not in seen]
            seen.update(fresh)
            component += fresh
        components.append(sorted(component))
    return components


def _cut_component(
    problem: CutProblem, component: Sequence[int], edges: Mapping[int, Sequence[int]]
) -> set[int]:
    """A value is two nodes, in and out, by its place in ``component``; the edge between them costs."""
    places = {v: 2 + 2 * k for k, v in enumerate(component)}
    unlimited = 1 + sum(problem.capacity[v] or 0 for v in component)
    network = FlowNetwork(2 + 2 * len(component))
    for v, place in places.items():
        capacity = problem.capacity[v]
        network.add(place, place + 1, unlimited if capacity is None else capacity)
        if v in problem.given:
            network.add(_SOURCE, place, unlimited)
        if v in problem.needed:
            network.add(place + 1, _SINK, unlimited)
        for u in edges[v]:
            network.add(place + 1, places[u], unlimited)
    if network.fill(_SOURCE, _SINK) >= unlimited:
        raise NoCut
    far = network.reaching(_SINK)
    return {v for v, place in places.items() if place not in far and place + 1 in far}
