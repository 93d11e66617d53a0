"""What expressions in loops' counters are at most: memory is given before the loops run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from weft_loop_ir.ir import Buffer, Count, Loop, Region
from weft_loop_ir.loop_graph import Item
from weft_loop_ir.unsupported import Unsupported

Ends = tuple[sympy.Expr | None, sympy.Expr | None]
Bounds = Mapping[sympy.Symbol, Ends]
"""By counter, outer ones first: its least and its greatest value, None where there is no bound."""


def counter_bounds(steps: Sequence[Item]) -> Bounds:
    """The bounds of all counters of loops in ``steps``, in terms of sizes and of loops around."""
    found: dict[sympy.Symbol, Ends] = {}
    for step in steps:
        if isinstance(step, Loop) and step.count is not None:
            found[step.count.symbol] = _bounds(step.count)
        if isinstance(step, Region):
            for block in step.blocks:
                found |= counter_bounds(block)
    return found


def _bounds(count: Count) -> Ends:
    last = None if count.stop is None else count.stop - (1 if count.ascends else -1)
    return (count.start, last) if count.ascends else (last, count.start)


def largest(buffer: Buffer, bounds: Bounds) -> Buffer:
    """``buffer`` in the largest layout that it has in any iteration."""
    layout = buffer.layout
    extents = [*layout.size, *layout.stride]
    if not any(symbol in bounds for extent in extents for symbol in extent.free_symbols):
        return buffer
    found = [greatest(extent, bounds) for extent in extents]
    rank = len(layout.size)
    size, stride = tuple(found[:rank]), tuple(found[rank:])
    return replace(buffer, layout=replace(layout, size=size, stride=stride))


def greatest(extent: sympy.Expr, bounds: Bounds) -> sympy.Expr:
    expression = sympy.expand(extent)
    for symbol, (least, greatest) in reversed(list(bounds.items())):
        if symbol not in expression.free_symbols:
            continue
        factor = expression.coeff(symbol)
        rest = sympy.expand(expression - factor * symbol)
        bound = greatest if factor.is_nonnegative else least
        has_sign = factor.is_nonnegative or factor.is_nonpositive
        if symbol in rest.free_symbols or bound is None or not has_sign:
            raise Unsupported(
                "size that differs by iteration", str(extent), "Its greatest value is not known."
            )
        expression = sympy.expand(rest + factor * bound)
    return expression if expression.is_nonnegative else sympy.Max(expression, 0)


def settled(expression: sympy.Expr, bounds: Bounds) -> sympy.Expr:
    """``expression`` without the minima and maxima that are one of their arguments in all iterations."""
    found = {term: _decided(term, bounds) for term in expression.atoms(sympy.Min, sympy.Max)}
    return expression.xreplace({term: value for term, value in found.items() if value != term})


def _decided(term: sympy.Min | sympy.Max, bounds: Bounds) -> sympy.Expr:
    kept = list(term.args)
    for left, right in itertools.permutations(term.args, 2):
        if left in kept and right in kept and _never_above(left, right, bounds):
            kept.remove(right if isinstance(term, sympy.Min) else left)
    return term.func(*kept)


def _never_above(left: sympy.Expr, right: sympy.Expr, bounds: Bounds) -> bool:
    try:
        return bool(greatest(left - right, bounds) == 0)
    except Unsupported:
        return False
