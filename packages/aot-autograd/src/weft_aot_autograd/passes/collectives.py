"""Lets communication run beside computation: collectives start early, and are waited for late."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch.fx

from .._torch import COMMUNICATES, OpOverload
from .dead_code import is_impure

# What is taken first of several nodes whose arguments are all there.
_START, _COMPUTE, _WAIT = range(3)


def overlap_collectives(graph: torch.fx.Graph) -> int:
    """Order ``graph`` so that a collective runs beside all that does not depend on it.

    Each starts once its arguments are there, and is waited for when nothing else is left to compute.
    Collectives keep their order among each other, which has to be the same on every rank, and so do random
    numbers and other effects; what else there is stays in order as far as it can.  Returns how many nodes
    come after one that they came before.  A graph without collectives is left alone.
    """
    if not any(map(_is_collective, graph.nodes)):
        return 0
    (output,) = graph.find_nodes(op="output")
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    order = _ordered(nodes)
    for node in order:
        output.prepend(node)
    position = {node: index for index, node in enumerate(nodes)}
    latest, moved = -1, 0
    for node in order:
        moved += position[node] < latest
        latest = max(latest, position[node])
    return moved


def _ordered(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """``nodes`` of a graph, each behind its arguments and behind the ones that it must not overtake."""
    position = {node: index for index, node in enumerate(nodes)}
    followers: list[set[int]] = [set() for _ in nodes]
    for index, node in enumerate(nodes):
        for argument in node.all_input_nodes:
            if argument in position:
                followers[position[argument]].add(index)
    for chain in (filter(starts, nodes), filter(_has_other_effect, nodes)):
        previous: int | None = None
        for node in chain:
            if previous is not None:
                followers[previous].add(position[node])
            previous = position[node]
    missing = [0] * len(nodes)
    for several in followers:
        for index in several:
            missing[index] += 1
    ready = [(_urgency(nodes[i]), i) for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(nodes[index])
        for follower in followers[index]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (_urgency(nodes[follower]), follower))
    return order


def _urgency(node: torch.fx.Node) -> int:
    if starts(node):
        return _START
    return _WAIT if is_wait(node) else _COMPUTE


def is_wait(node: torch.fx.Node) -> bool:
    """Whether ``node`` gives its argument once the collective that makes it has ended."""
    return isinstance(node.target, OpOverload) and node.target._schema.name == (
        f"{COMMUNICATES}::wait_tensor"
    )


def starts(node: torch.fx.Node) -> bool:
    """Whether the result of ``node`` holds nothing until it is waited for."""
    return _is_collective(node) and not is_wait(node)


def _is_collective(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace == COMMUNICATES


def _has_other_effect(node: torch.fx.Node) -> bool:
    return is_impure(node) and not _is_collective(node)
