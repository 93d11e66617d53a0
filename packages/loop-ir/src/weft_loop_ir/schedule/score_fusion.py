"""Which of several legal fusions comes first."""

from __future__ import annotations

from collections.abc import Mapping

from weft_loop_ir.schedule.groups import Group

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
