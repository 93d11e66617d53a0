"""The cheapest set of values that separates what is given from what is needed, by minimum cuts.

Each value is split into an edge whose capacity is its size; a cut through the edge saves the value.  Before
any flow is computed the network is reduced: values that must be saved, and what they shield, are left out,
and what remains falls apart into components.  In programs of layers these are small, so that the time is
near-linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

_SOURCE, _SINK = "source", "sink"


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
    # Positions, by all that they depend on: layers are alike.
    cuts: dict[tuple[Any, ...], list[int]] = {}
    for component in _components(edges):
        position = {v: k for k, v in enumerate(component)}
        key = tuple(
            (
                problem.capacity[v],
                v in problem.given,
                v in problem.needed,
                tuple(position[u] for u in edges[v]),
            )
            for v in component
        )
        if key not in cuts:
            cuts[key] = [position[v] for v in _cut_component(problem, component, edges)]
        saved.update(component[k] for k in cuts[key])
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
    problem: CutProblem, component: Iterable[int], edges: Mapping[int, Sequence[int]]
) -> set[int]:
    import networkx as nx  # here, since it takes long to import and only training needs it

    network = nx.DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))
    for v in component:
        if problem.capacity[v] is None:
            network.add_edge((v, "in"), (v, "out"))
        else:
            network.add_edge((v, "in"), (v, "out"), capacity=problem.capacity[v])
        if v in problem.given:
            network.add_edge(_SOURCE, (v, "in"))
        if v in problem.needed:
            network.add_edge((v, "out"), _SINK)
        for u in edges[v]:
            network.add_edge((v, "out"), (u, "in"))
    try:
        _, (near, _) = nx.minimum_cut(
            network, _SOURCE, _SINK, flow_func=nx.algorithms.flow.boykov_kolmogorov
        )
    except nx.NetworkXUnbounded as error:
        raise NoCut from error
    return {v for v in component if (v, "in") in near and (v, "out") not in near}
