"""Greedy fusion to a fixpoint, over pairs of groups that touch a common buffer."""

from __future__ import annotations

from collections.abc import Mapping

from weft_loop_ir.schedule.can_fuse import fuse
from weft_loop_ir.schedule.dependency_graph import DependencyGraph
from weft_loop_ir.schedule.groups import Group
from weft_loop_ir.schedule.options import ScheduleOptions

NEIGHBOURS = 3
"""How many later readers of a buffer each reader is paired with: pairs stay linear in readers."""

MAX_READERS = 64
"""Readers of one buffer that its writer is paired with, nearest first."""

EARLY_NODES = 8
"""Nodes by which fusion may bring a part of a large buffer forward, and with it the buffer's allocation."""


def fuse_groups(
    graph: DependencyGraph, bytes_of: Mapping[str, int], options: ScheduleOptions
) -> None:
    """Fuse groups of ``graph`` until no legal pair is left."""
    refused: set[tuple[int, int]] = set()
    fresh: set[int] | None = None
    while fresh is None or fresh:
        pairs = _scored_pairs(graph, bytes_of, options, refused, fresh)
        fresh = set()
        for _, first, second in pairs:
            if first not in graph.payload or second not in graph.payload:
                continue
            key = _try(graph, first, second, options)
            if key is None:
                refused.add((first, second))
            else:
                fresh.add(key)


def _try(graph: DependencyGraph, first: int, second: int, options: ScheduleOptions) -> int | None:
    if graph.rank[first] > graph.rank[second]:
        first, second = second, first
    left, right = graph.payload[first], graph.payload[second]
    assert isinstance(left, Group) and isinstance(right, Group)
    fused = fuse(left, right, options)
    if fused is None:
        return None
    if any(len(graph.writers[name]) > 1 for name in left.writes & right.reads):
        return None
    return graph.contract(first, second, fused, options.max_search)


def _scored_pairs(
    graph: DependencyGraph,
    bytes_of: Mapping[str, int],
    options: ScheduleOptions,
    refused: set[tuple[int, int]],
    fresh: set[int] | None,
) -> list[tuple[Score, int, int]]:
    """Candidate pairs, best first; with ``fresh``, only pairs that one of those groups is in."""
    rank = graph.rank
    found: dict[tuple[int, int], Score] = {}

    def propose(a: int, b: int) -> None:
        first, second = (a, b) if rank[a] < rank[b] else (b, a)
        pair = (first, second)
        if a == b or pair in found or pair in refused:
            return
        if fresh is not None and a not in fresh and b not in fresh:
            return
        left, right = graph.payload[first], graph.payload[second]
        if isinstance(left, Group) and isinstance(right, Group):
            if left.writes.isdisjoint(right.reads) and (
                abs(right.first_order - left.first_order) > options.max_distance
            ):
                return
            if not _begins_large_buffer_early(graph, left, right, bytes_of, options):
                found[pair] = score_fusion(left, right, bytes_of)

    names = _names(graph, fresh)
    for name in names:
        readers = sorted(graph.readers.get(name, ()), key=rank.__getitem__)
        for writer in graph.writers.get(name, ()):
            for reader in readers[:MAX_READERS]:
                propose(writer, reader)
        for position, reader in enumerate(readers):
            for later in readers[position + 1 : position + 1 + NEIGHBOURS]:
                propose(reader, later)
    ordered = [(score, first, second) for (first, second), score in found.items()]
    ordered.sort(key=lambda entry: (entry[0], -rank[entry[1]], -rank[entry[2]]), reverse=True)
    return ordered


def _begins_large_buffer_early(
    graph: DependencyGraph,
    left: Group,
    right: Group,
    bytes_of: Mapping[str, int],
    options: ScheduleOptions,
) -> bool:
    """Whether fusion would write a part of a large buffer long before what else makes the buffer.

    Each layer of a densely connected network concatenates the results of all before it: with the first
    result written to all its places at once, every layer's input would be held from the first layer on.
    """
    if options.early_bytes is None or right.first_order - left.first_order <= EARLY_NODES:
        return False
    return any(
        len(graph.writers[name]) > 1 and bytes_of[name] > options.early_bytes
        for name in right.writes - left.writes
    )


def _names(graph: DependencyGraph, fresh: set[int] | None) -> list[str]:
    """The buffers to look at, in a stable order."""
    if fresh is None:
        return list(dict.fromkeys([*graph.writers, *graph.readers]))
    names: dict[str, None] = {}
    for key in sorted(fresh):
        group = graph.payload.get(key)
        if isinstance(group, Group):
            names.update(dict.fromkeys(sorted(group.reads | group.writes)))
    return list(names)


Score = tuple[int, int, int]


def score_fusion(first: Group, second: Group, bytes_of: Mapping[str, int]) -> Score:
    """Larger is better: the category, then bytes of memory traffic saved, then nearness in the graph.

    Categories: 3 a reduction with a reduction or a consumer of it, 2 producer and consumer, 1 common reads.
    A buffer written by one and read by the other counts twice: its store may vanish too.
    """
    produced = first.writes & second.reads
    common = first.reads & second.reads
    saved = sum(2 * bytes_of[name] for name in produced) + sum(bytes_of[name] for name in common)
    if produced:
        category = 3 if first.has_reduction and second.has_reduction else 2
    else:
        category = 1
    distance = abs(second.first_order - first.first_order)
    return category, saved, -distance
