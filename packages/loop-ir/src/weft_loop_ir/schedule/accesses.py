"""Index expressions as linear forms over loops: what fusion compares, without SymPy's cost."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from weft_loop_ir.expressions import to_int
from weft_loop_ir.index_simplify import exact_quotient
from weft_loop_ir.ir import LoopVariable

Extent = Any
"""A Python int, or a SymPy expression where the size is symbolic."""


@dataclass(frozen=True)
class LinearForm:
    """``sum(coefficients * loops) + rest``.  ``opaque``: ``rest`` contains loop symbols."""

    coefficients: tuple[Extent, ...]
    rest: sympy.Expr
    opaque: bool


@functools.lru_cache(maxsize=65536)
def linear_form(expression: sympy.Expr, symbols: tuple[sympy.Symbol, ...]) -> LinearForm:
    """``expression`` as a linear form over ``symbols``."""
    positions = {s: k for k, s in enumerate(symbols)}
    coefficients: list[Extent] = [0] * len(symbols)
    rest: list[sympy.Expr] = []
    terms = [*sympy.Add.make_args(expression)]
    for term in terms:  # grows by those of products of sums, such as ``(n - 1 - i) * m``
        if term in positions:
            coefficients[positions[term]] = coefficients[positions[term]] + 1
            continue
        if isinstance(term, sympy.Mul):
            loops = [f for f in term.args if f in positions]
            others = [f for f in term.args if f not in positions]
            if len(loops) == 1 and not any(
                s in positions for factor in others for s in factor.free_symbols
            ):
                k = positions[loops[0]]
                coefficients[k] = coefficients[k] + to_int(sympy.Mul(*others))
                continue
            if not loops and any(f.is_Add and f.free_symbols & positions.keys() for f in others):
                terms += sympy.Add.make_args(sympy.expand_mul(term, deep=False))
                continue
        rest.append(term)
    remainder = sympy.Add(*rest)
    opaque = any(s in positions for s in remainder.free_symbols)
    return LinearForm(tuple(coefficients), remainder, opaque)


def with_replaced(
    expression: sympy.Expr,
    symbols: tuple[sympy.Symbol, ...],
    replacements: Mapping[sympy.Symbol, sympy.Expr],
) -> sympy.Expr:
    """``expression`` with each of ``symbols`` replaced, term by term where it is linear in them."""
    form = linear_form(expression, symbols)
    terms = [replacements[s] * c for s, c in zip(symbols, form.coefficients, strict=True) if c != 0]
    rest = form.rest.xreplace(replacements) if form.opaque else form.rest
    return sympy.Add(rest, *terms)


def runs_that_act_as_one(
    order: Sequence[int], variables: Sequence[LoopVariable], forms: Sequence[LinearForm]
) -> list[list[int]]:
    """``order``, positions of loops, in runs: those of a run step through all ``forms`` as one loop does."""

    def act_as_one(outer: int, inner: int) -> bool:
        extent = to_int(variables[inner].size)
        symbols = (variables[outer].symbol, variables[inner].symbol)
        return all(
            form.coefficients[outer] == form.coefficients[inner] * extent
            and not (form.opaque and form.rest.free_symbols.intersection(symbols))
            for form in forms
        )

    runs: list[list[int]] = []
    for k in order:
        if runs and act_as_one(runs[-1][-1], k):
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def divides(divisor: Extent, dividend: Extent) -> Extent | None:
    """``dividend / divisor`` when that is provably an integer, else None."""
    if isinstance(divisor, int) and isinstance(dividend, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    if divisor == 0:
        return None
    if divisor == dividend:
        return 1
    quotient = exact_quotient(sympy.sympify(dividend), sympy.sympify(divisor))
    return None if quotient is None else to_int(quotient)


def common_refinement(
    left: Sequence[Extent], right: Sequence[Extent]
) -> list[tuple[Extent, int, int]] | None:
    """Split two lists of loop extents into the same pieces, outermost first.

    Each piece is (extent, position in ``left``, position in ``right``).  None where the row-major orders
    of the two lists don't split into common pieces.
    """
    pieces: list[tuple[Extent, int, int]] = []
    i, j = len(left) - 1, len(right) - 1
    if i < 0 or j < 0:
        return [] if i == j else None
    a, b = left[i], right[j]
    while True:
        if a == b:
            pieces.append((a, i, j))
            i, j = i - 1, j - 1
            if i < 0 or j < 0:
                return pieces[::-1] if i == j else None
            a, b = left[i], right[j]
            continue
        quotient = divides(b, a)
        if quotient is not None and b != 1:
            pieces.append((b, i, j))
            a, j = quotient, j - 1
            if j < 0:
                return None
            b = right[j]
            continue
        quotient = divides(a, b)
        if quotient is None or a == 1:
            return None
        pieces.append((a, i, j))
        b, i = quotient, i - 1
        if i < 0:
            return None
        a = left[i]
