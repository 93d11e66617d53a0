"""What expressions in loops' counters are at most: memory is given before the loops run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from weft_loop_ir.ir import Buffer, Count, Loop, Region, Step
from weft_loop_ir.unsupported import Unsupported

Ends = tuple[sympy.Expr | None, sympy.Expr | None]
Bounds = Mapping[sympy.Symbol, Ends]
"""By counter, outer ones first: its least and its greatest value, None where there is no bound."""


def counter_bounds(steps: Sequence[Step]) -> Bounds:
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
    found = [_greatest(extent, bounds) for extent in extents]
    rank = len(layout.size)
    size, stride = tuple(found[:rank]), tuple(found[rank:])
    return replace(buffer, layout=replace(layout, size=size, stride=stride))


def _greatest(extent: sympy.Expr, bounds: Bounds) -> sympy.Expr:
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
