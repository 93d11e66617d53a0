"""Which groups may become one kernel, and how their loops align."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from weft_loop_ir.guesses import LARGE
from weft_loop_ir.schedule.accesses import Extent, common_refinement
from weft_loop_ir.schedule.groups import (
    Group,
    GroupAccess,
    Member,
    Row,
    count,
    rewritten,
    split_rows,
)
from weft_loop_ir.schedule.iterations import steps_apart
from weft_loop_ir.schedule.options import ScheduleOptions

_Half = tuple[tuple[Member, ...], tuple[GroupAccess, ...]]
"""The members and accesses of one of two groups, over their common loops."""


SHORT = 16
"""Iterations below which it does not matter in which order memory is gone through."""


@dataclass(frozen=True)
class Alignment:
    """Common loops of two groups, and each group's loops as linear forms over them."""

    outer: tuple[Extent, ...]
    inner: tuple[Extent, ...]
    first_rows: tuple[Row, ...]
    second_rows: tuple[Row, ...]
    first_spans: bool | None = None
    second_spans: bool | None = None

    @property
    def turned(self) -> Alignment:
        """The same for the second group and the first."""
        rows, spans = (self.second_rows, self.first_rows), (self.second_spans, self.first_spans)
        return Alignment(self.outer, self.inner, *rows, *spans)


def fuse(first: Group, second: Group, options: ScheduleOptions) -> Group | None:
    """The fusion of two groups, ``first`` not depending on ``second``; None when it isn't legal.

    Dependencies through third groups are the caller's to check.
    """
    if not (first.is_fusible and second.is_fusible) or first.block != second.block:
        return None
    if len(first.members) + len(second.members) > options.max_members:
        return None
    if first.instructions + second.instructions > options.max_instructions:
        return None
    both = first.writes & second.writes
    if both and not _only_write(first, second, both):
        return None
    shared = (first.writes & second.reads) | (first.reads & second.writes)
    for alignment in _alignments(first, second, shared):
        if not _keeps_parallelism(alignment, first, second, options):
            continue
        halves = _over_common_loops(first, second, alignment)
        if not _goes_along_rows(alignment, first, second, halves, options):
            continue
        fused = _fused_over(first, second, alignment, halves)
        if not (_accesses_agree(fused, shared) and _stay_apart(fused, both)):
            continue
        (_, left), (_, right) = halves
        if shared or both or _reads_agree(left, right, fused.loops):
            return fused
    return None


def _alignments(first: Group, second: Group, shared: frozenset[str]) -> list[Alignment]:
    """The ways to put two groups over common loops, the best first."""
    if not first.has_reduction and not second.has_reduction:
        return _pointwise_alignments(first, second, shared)
    if first.has_scan and not second.has_reduction:
        return _beside_scan(first, second, shared)
    if second.has_scan and not first.has_reduction:
        return [a.turned for a in _beside_scan(second, first, shared)]
    if first.has_scan or second.has_scan:
        return []
    if first.has_reduction and second.has_reduction:
        outer = common_refinement(first.outer, second.outer)
        inner = common_refinement(first.inner, second.inner)
        if outer is None or inner is None:
            return []
        return [_piecewise(outer, inner, first, second)]
    if first.has_reduction:
        return _beside_reduction(first, second)
    return [a.turned for a in _beside_reduction(second, first)]


def _pointwise_alignments(first: Group, second: Group, shared: frozenset[str]) -> list[Alignment]:
    found = []
    pieces = common_refinement(first.outer, second.outer)
    if pieces is not None:
        found.append(_piecewise(pieces, [], first, second))
    permuted = _by_strides(first, second, shared or first.reads & second.reads)
    if permuted is not None:
        found.append(permuted)
    return found


def _by_strides(first: Group, second: Group, shared: frozenset[str]) -> Alignment | None:
    """Align loops in different orders by the strides with which both access one buffer."""
    for name in sorted(shared):
        left = _distinct(first.accesses, name)
        right = _distinct(second.accesses, name)
        if left is None or right is None:
            continue
        left_order = sorted(range(len(left)), key=lambda k: -left[k])
        right_order = sorted(range(len(right)), key=lambda k: -right[k])
        pieces = common_refinement(
            [first.loops[k] for k in left_order], [second.loops[k] for k in right_order]
        )
        if pieces is None:
            continue
        return _reordered(pieces, left_order, right_order)
    return None


def _reordered(
    pieces: Sequence[tuple[Extent, int, int]], left_order: Sequence[int], right_order: Sequence[int]
) -> Alignment:
    """The alignment of ``pieces``, which are in order of stride, in the first group's order of loops."""
    left = split_rows([(extent, left_order[i]) for extent, i, _ in pieces], len(left_order))
    right = split_rows([(extent, right_order[j]) for extent, _, j in pieces], len(right_order))
    columns = sorted(range(len(pieces)), key=lambda k: left_order[pieces[k][1]])
    return Alignment(
        tuple(pieces[k][0] for k in columns),
        (),
        tuple(tuple(row[k] for k in columns) for row in left),
        tuple(tuple(row[k] for k in columns) for row in right),
    )


def _distinct(accesses: Sequence[GroupAccess], name: str) -> Row | None:
    """The strides of the first access to ``name`` if every loop has one, static and positive."""
    for access in accesses:
        if access.buffer == name:
            strides = access.coefficients
            if access.opaque or not all(isinstance(s, int) and s > 0 for s in strides):
                return None
            return strides
    return None


def _piecewise(
    outer: list[tuple[Extent, int, int]],
    inner: list[tuple[Extent, int, int]],
    first: Group,
    second: Group,
) -> Alignment:
    """The alignment of pieces of both groups' outer loops, and of pieces of their inner ones."""
    left = [(p[0], p[1]) for p in outer] + [(p[0], p[1] + len(first.outer)) for p in inner]
    right = [(p[0], p[2]) for p in outer] + [(p[0], p[2] + len(second.outer)) for p in inner]
    return Alignment(
        tuple(p[0] for p in outer),
        tuple(p[0] for p in inner),
        split_rows(left, len(first.loops)),
        split_rows(right, len(second.loops)),
    )


def _beside_reduction(reduction: Group, pointwise: Group) -> list[Alignment]:
    """A pointwise group over all of a reduction's loops, or once for each of its outer iterations.

    In the results, the reduction's group is the first.
    """
    found = []
    pieces = common_refinement(reduction.loops, pointwise.outer)
    split = len(reduction.outer)
    if pieces is not None:
        found.append(
            Alignment(
                tuple(p[0] for p in pieces if p[1] < split),
                tuple(p[0] for p in pieces if p[1] >= split),
                split_rows([(p[0], p[1]) for p in pieces], len(reduction.loops)),
                split_rows([(p[0], p[2]) for p in pieces], len(pointwise.outer)),
                second_spans=True,
            )
        )
    pieces = common_refinement(reduction.outer, pointwise.outer)
    if pieces is not None:
        left = [(p[0], p[1]) for p in pieces]
        left += [(extent, split + k) for k, extent in enumerate(reduction.inner)]
        padding = (0,) * len(reduction.inner)
        rows = split_rows([(p[0], p[2]) for p in pieces], len(pointwise.outer))
        found.append(
            Alignment(
                tuple(p[0] for p in pieces),
                reduction.inner,
                split_rows(left, len(reduction.loops)),
                tuple(row + padding for row in rows),
                second_spans=False,
            )
        )
    return found


def _beside_scan(scan: Group, pointwise: Group, shared: frozenset[str]) -> list[Alignment]:
    """A pointwise group over all of a scan's loops, of which the inner one stays whole.

    In the results, the scan's group is the first.
    """
    found = []
    split = len(scan.outer)
    pieces = common_refinement(scan.loops, pointwise.outer)
    if pieces is not None:
        found.append(_piecewise(pieces, [], scan, pointwise))
    permuted = _by_strides(scan, pointwise, shared)
    if permuted is not None:
        found.append(permuted)
    return [
        replace(a, outer=a.outer[:-1], inner=a.outer[-1:], second_spans=True)
        for a in found
        if a.outer[-1:] == scan.inner and not any(a.first_rows[split][:-1])
    ]


def _keeps_parallelism(
    alignment: Alignment, first: Group, second: Group, options: ScheduleOptions
) -> bool:
    """Pointwise work doesn't join a reduction with few outer iterations when there is much of it."""
    spans = alignment.first_spans if alignment.first_spans is not None else alignment.second_spans
    both = first.has_reduction and second.has_reduction
    if not (spans or (both and not first.writes.isdisjoint(second.reads))):
        return True
    outer = count(alignment.outer)
    inner = count(alignment.inner)
    if not isinstance(outer, int) or outer >= options.min_outer_iterations:
        return True
    return isinstance(inner, int) and outer * inner <= options.max_serial_elements


def _goes_along_rows(
    alignment: Alignment,
    first: Group,
    second: Group,
    halves: tuple[_Half, _Half],
    options: ScheduleOptions,
) -> bool:
    """Whether pointwise work goes through memory as the long rows do that it joins.

    What is stored crosswise, one element of each row after another, is so in tiles, of which a kernel that
    reduces long rows has none.
    """
    limit, inner = options.max_crossed_elements, count(alignment.inner)
    if limit is None or first.has_reduction == second.has_reduction:
        return True
    spans = alignment.second_spans if first.has_reduction else alignment.first_spans
    if not spans or (isinstance(inner, int) and inner <= limit):
        return True
    extents = alignment.outer + alignment.inner
    left, right = (_crossed_loops(accesses, extents) for _, accesses in halves)
    return right <= left if first.has_reduction else left <= right


def _crossed_loops(accesses: Sequence[GroupAccess], extents: Sequence[Extent]) -> set[int]:
    """The loops along which neighbours lie side by side where those of the innermost loop do not."""
    return {
        loop
        for access in accesses
        if not access.opaque and access.coefficients[-1] not in (0, 1, -1)
        for loop, coefficient in enumerate(access.coefficients)
        if coefficient in (1, -1) and not _is_short(extents[loop]) and not _is_short(extents[-1])
    }


def _is_short(extent: Extent) -> bool:
    """Whether a loop is known to be so short that one line of memory has what it goes through."""
    return isinstance(extent, int) and extent < SHORT


def _over_common_loops(first: Group, second: Group, alignment: Alignment) -> tuple[_Half, _Half]:
    rank = len(alignment.outer) + len(alignment.inner)
    return (
        rewritten(first, alignment.first_rows, rank, alignment.first_spans),
        rewritten(second, alignment.second_rows, rank, alignment.second_spans),
    )


def _fused_over(
    first: Group, second: Group, alignment: Alignment, halves: tuple[_Half, _Half]
) -> Group:
    (first_members, first_accesses), (second_members, second_accesses) = halves
    members = tuple(sorted(first_members + second_members, key=lambda m: m.order))
    return Group(
        alignment.outer,
        alignment.inner,
        first.has_reduction or second.has_reduction,
        members,
        tuple(dict.fromkeys(first_accesses + second_accesses)),
        True,
        first.reads | second.reads,
        first.writes | second.writes,
        first.has_scan or second.has_scan,
        first.instructions + second.instructions,
        first.block,
    )


def _reads_agree(first: Sequence[GroupAccess], second: Sequence[GroupAccess], loops: Row) -> bool:
    """Whether groups without a dependency go through what both read in the same order.

    Of the buffers that both read, the one of which they read the most elements says so.  A sum over rows
    and what is computed row by row may have loops of the same extents, but in one kernel one of them would
    read with long strides.
    """
    sides = [
        {a.buffer: a for a in reversed(accesses) if not a.is_store} for accesses in (first, second)
    ]
    common = [
        (_elements(one.coefficients, loops), one.coefficients == sides[1][name].coefficients)
        for name, one in sides[0].items()
        if name in sides[1] and not (one.opaque or sides[1][name].opaque)
    ]
    return max(common)[1] if common else True


def _elements(coefficients: Row, loops: Row) -> int:
    """About how many elements an access reads over ``loops``; those of varying extent count as long."""
    walked = [n for c, n in zip(coefficients, loops, strict=True) if c != 0]
    return math.prod(n if isinstance(n, int) else LARGE for n in walked)


def _only_write(first: Group, second: Group, names: frozenset[str]) -> bool:
    """Whether two groups that write parts of buffers are pointwise, and read none of these."""
    has_reduction = first.has_reduction or second.has_reduction
    return not has_reduction and names.isdisjoint(first.reads | second.reads)


def _stay_apart(group: Group, names: frozenset[str]) -> bool:
    """Whether stores to one buffer at different places never meet, in whatever iterations they are."""
    for name in names:
        accesses = [a for a in group.accesses if a.buffer == name]
        if any(a.opaque or a.coefficients != accesses[0].coefficients for a in accesses):
            return False
        strides, extents = accesses[0].coefficients, group.loops
        if not all(isinstance(n, int) for n in (*strides, *extents)):
            return False
        digits = [(abs(int(s)), int(n)) for s, n in zip(strides, extents, strict=True) if s != 0]
        digits.sort(reverse=True)
        for one, other in itertools.combinations(accesses, 2):
            distance = sympy.expand(one.rest - other.rest)
            if not isinstance(distance, sympy.Integer):
                return False
            if may_differ_by(int(distance), digits):
                return False
    return True


def may_differ_by(distance: int, digits: Sequence[tuple[int, int]]) -> bool:
    """Whether two sums of multiples of strides, below their extents, may be ``distance`` apart.

    ``digits`` are strides and extents, from the greatest stride on.  It is true where many multiples of one
    stride would have to be tried: where the strides are no system of digits.
    """
    if not digits:
        return distance == 0
    if distance % math.gcd(*(stride for stride, _ in digits)):
        return False
    (stride, extent), *smaller = digits
    reach = sum(s * (n - 1) for s, n in smaller)
    least = max(-(-(distance - reach) // stride), 1 - extent)
    greatest = min((distance + reach) // stride, extent - 1)
    if greatest - least > 1:
        return True
    return any(may_differ_by(distance - k * stride, smaller) for k in range(least, greatest + 1))


def _accesses_agree(group: Group, shared: frozenset[str]) -> bool:
    """Whether every access to a buffer that one group writes and the other reads is to the same element.

    Only one iteration of the outer loops may come to an element: ``t = y[i]; y[i] = t * 2`` as one kernel
    would read what it has stored, where ``i`` has a position twice.
    """
    for name in shared:
        accesses = [a for a in group.accesses if a.buffer == name]
        first = accesses[0]
        if any((a.coefficients, a.rest) != (first.coefficients, first.rest) for a in accesses):
            return False
        if any(a.opaque or a.depends_on_data for a in accesses):
            return False
        if not steps_apart(first.coefficients[: len(group.outer)], group.outer):
            return False
    return True
