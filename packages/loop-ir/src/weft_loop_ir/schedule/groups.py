"""Fusion groups: loop nodes that share one nest of loops, and how their accesses read in it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import sympy

from weft_loop_ir.bodies import Access, Fold, IndexValue, Instruction, LoopBody, Store
from weft_loop_ir.expressions import to_int
from weft_loop_ir.ir import LoopVariable
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.schedule.accesses import Extent, LinearForm, linear_form, runs_that_act_as_one

Row = tuple[Extent, ...]

WIDE_INSTRUCTION = 3
"""How many instructions one on numbers of 8 bytes counts as: to a C++ compiler vectors of them are memory."""


@dataclass(frozen=True)
class GroupAccess:
    """An access to ``buffer``, linear over the group's loops; ``rest`` is in the member's own symbols.

    ``depends_on_data``: some of these stand for values that the member's body reads.
    """

    buffer: str
    is_store: bool
    coefficients: Row
    rest: sympy.Expr
    opaque: bool
    depends_on_data: bool


@dataclass(frozen=True)
class Member:
    """A loop node in a group.  Its variable ``k`` is the dot product of ``mapping[k]`` and the loops.

    ``spans_inner`` says whether it runs in the inner loops or once for each outer iteration.
    """

    node: LoopNode
    order: int
    mapping: tuple[Row, ...]
    spans_inner: bool


@dataclass(frozen=True)
class Group:
    """Members over loops of extents ``outer + inner``; ``has_reduction`` gives ``inner`` its meaning.

    ``has_scan``: that is one loop, which a member scans along.  ``instructions`` counts all members', those
    on numbers of 8 bytes as :data:`WIDE_INSTRUCTION`.  ``block`` is all members'.
    """

    outer: tuple[Extent, ...]
    inner: tuple[Extent, ...]
    has_reduction: bool
    members: tuple[Member, ...]
    accesses: tuple[GroupAccess, ...]
    is_fusible: bool
    reads: frozenset[str]
    writes: frozenset[str]
    has_scan: bool = False
    instructions: int = 1
    block: int = 0

    @property
    def loops(self) -> tuple[Extent, ...]:
        return self.outer + self.inner

    @property
    def first_order(self) -> int:
        return self.members[0].order


def count(extents: Sequence[Extent]) -> Extent:
    """The product of ``extents``."""
    result: Extent = 1
    for extent in extents:
        result = result * extent
    return result


def group_of_node(node: LoopNode, order: int) -> Group:
    """The group of one node: loops of extent 1 dropped, loops that act as one merged."""
    has_reduction = bool(node.reduction_loops)
    variables = node.all_loops
    symbols = tuple(v.symbol for v in variables)
    found = node.body.indexed()
    forms = [linear_form(i.index, symbols) for i in found]
    keep = [k for k, v in enumerate(variables) if v.size != 1]
    reduction_start = len(node.loops)
    if has_reduction and not any(k >= reduction_start for k in keep):
        keep.append(len(variables) - 1)
    if not has_reduction:
        keep = _store_order(keep, found, forms)
    split = sum(1 for k in keep if k < reduction_start)
    outer, outer_rows = _merge(keep[:split], variables, forms)
    inner, inner_rows = _merge(keep[split:], variables, forms)
    rank = len(outer) + len(inner)
    mapping: list[Row] = [(0,) * rank] * len(variables)
    for k, (position, factor) in outer_rows.items():
        mapping[k] = _unit(rank, position, factor)
    for k, (position, factor) in inner_rows.items():
        mapping[k] = _unit(rank, len(outer) + position, factor)
    mapping_tuple = tuple(mapping)
    member = Member(node, order, mapping_tuple, has_reduction)
    bound = node.body.bound_symbols
    accesses = tuple(
        _group_access(access, form, mapping_tuple, rank, bound)
        for access, form in zip(found, forms, strict=True)
        if not isinstance(access, IndexValue)
    )
    fusible = bool(node.writes) and not (node.body.holds(Fold) or node.body.accumulates)
    return Group(
        outer,
        inner,
        has_reduction,
        (member,),
        accesses,
        fusible,
        frozenset(node.reads),
        frozenset(node.writes),
        node.is_scan,
        _count_instructions(node.body),
        node.block,
    )


def _count_instructions(body: LoopBody) -> int:
    """How many there are, nested bodies included, in those on numbers of up to 4 bytes."""
    wide = [i.dtype is not None and i.dtype.itemsize > 4 for i in body.walk()]
    return len(wide) + (WIDE_INSTRUCTION - 1) * sum(wide)


def _unit(rank: int, position: int, factor: Extent) -> Row:
    return tuple(factor if k == position else 0 for k in range(rank))


def _store_order(
    keep: list[int], found: Sequence[Instruction], forms: list[LinearForm]
) -> list[int]:
    """The loops of a pointwise node, outermost first, by the strides of what it stores."""
    for instruction, form in zip(found, forms, strict=True):
        if isinstance(instruction, Store):
            strides = [form.coefficients[k] for k in keep]
            if not form.opaque and all(isinstance(s, int) for s in strides):
                return sorted(keep, key=lambda k: -form.coefficients[k])
    return keep


def _merge(
    keep: list[int], variables: tuple[LoopVariable, ...], forms: list[LinearForm]
) -> tuple[tuple[Extent, ...], dict[int, tuple[int, Extent]]]:
    """Merge adjacent loops that act as one in all ``forms``.

    Returns the extents, and for each variable (its loop, its multiple of the loop).  Of the variables that a
    loop merges, the innermost stands for all of them and the others are 0: every form comes out the same.
    """
    runs = runs_that_act_as_one(keep, variables, forms)
    extents = tuple(count([to_int(variables[k].size) for k in run]) for run in runs)
    rows: dict[int, tuple[int, Extent]] = {
        k: (position, int(k == run[-1])) for position, run in enumerate(runs) for k in run
    }
    return extents, rows


def _group_access(
    access: Access,
    form: LinearForm,
    mapping: tuple[Row, ...],
    rank: int,
    bound: AbstractSet[sympy.Symbol],
) -> GroupAccess:
    coefficients = combine(form.coefficients, mapping, rank)
    is_store = isinstance(access, Store)
    depends = bool(bound) and not bound.isdisjoint(form.rest.free_symbols)
    return GroupAccess(access.buffer, is_store, coefficients, form.rest, form.opaque, depends)


def combine(coefficients: Row, mapping: Sequence[Row], rank: int) -> Row:
    """A linear form over variables as one over the loops that ``mapping`` expresses them in."""
    result: list[Extent] = [0] * rank
    for coefficient, row in zip(coefficients, mapping, strict=True):
        if isinstance(coefficient, int) and coefficient == 0:
            continue
        for position, factor in enumerate(row):
            if isinstance(factor, int) and factor == 0:
                continue
            result[position] = result[position] + coefficient * factor
    return tuple(result)


def split_rows(pieces: Sequence[tuple[Extent, int]], old_rank: int) -> tuple[Row, ...]:
    """Each old loop as a linear form over ``pieces``: (extent, which old loop it is a part of)."""
    rows: list[list[Extent]] = [[0] * len(pieces) for _ in range(old_rank)]
    steps: list[Extent] = [1] * old_rank
    for position in reversed(range(len(pieces))):
        extent, old = pieces[position]
        rows[old][position] = steps[old]
        steps[old] = steps[old] * extent
    return tuple(tuple(r) for r in rows)


def rewritten(
    group: Group, rows: tuple[Row, ...], rank: int, spans_inner: bool | None
) -> tuple[tuple[Member, ...], tuple[GroupAccess, ...]]:
    """The group's members and accesses over new loops, its loop ``k`` being ``rows[k]`` of them.

    ``spans_inner`` overrides what the members say of themselves.
    """
    said = spans_inner is None or all(m.spans_inner == spans_inner for m in group.members)
    if said and _is_identity(rows, rank):  # most often
        return group.members, group.accesses
    members = tuple(
        Member(
            m.node,
            m.order,
            tuple(combine(row, rows, rank) for row in m.mapping),
            m.spans_inner if spans_inner is None else spans_inner,
        )
        for m in group.members
    )
    accesses = tuple(
        replace(a, coefficients=combine(a.coefficients, rows, rank)) for a in group.accesses
    )
    return members, accesses


def _is_identity(rows: tuple[Row, ...], rank: int) -> bool:
    """Whether the new loops are the old ones."""
    return len(rows) == rank and all(
        type(factor) is int and factor == int(k == position)
        for k, row in enumerate(rows)
        for position, factor in enumerate(row)
    )
