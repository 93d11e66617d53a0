"""Bounds of index expressions: where 32 bits suffice for indices, in every call or below some sizes.

A bound is a polynomial over magnitudes of the call's symbols, and of quotients and the like of them, which
the host computes.  All of these count as 1 at least, so that more factors never make a product smaller.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import sympy
from weft_loop_ir import FloorDiv, LoopBody, Mod
from weft_loop_ir.bodies import Access, IndexValue, Indirect

from weft_codegen_triton.options import INT32_SAFE

Bound = Mapping[tuple[sympy.Expr, ...], float]
"""What products, by their factors in the order of their texts, are multiplied with, to be added up."""

Sizes = Mapping[sympy.Symbol, sympy.Expr]
"""Bounds of symbols that are none of the call's: loops, indices that are read, counters of regions."""


@dataclass(frozen=True)
class IndexWidth:
    """How many bits indices of a kernel have: 64 if ``wide``, else 32.

    32 are enough in calls whose sizes keep each of ``bounds`` below ``INT32_SAFE``.
    """

    wide: bool
    bounds: tuple[Bound, ...] = ()

    @property
    def of_sizes(self) -> str:
        """The type of a parameter that is a size, by Triton's name."""
        return "i64" if self.wide else "i32"


@dataclass(frozen=True)
class SymbolicIndices:
    """How wide indices are that only the sizes of a call bound: of 64 bits if ``wide``, else of 32.

    ``counters`` bounds the symbols that regions around kernels count with.
    """

    wide: bool = True
    counters: Sizes = field(default_factory=dict)

    def width(self, bounds: Iterable[Bound]) -> IndexWidth:
        """That of a kernel whose indices ``bounds`` bound."""
        found = list(bounds)
        varying = [bound for bound in found if bound.keys() - {()}]
        if any(map(_is_beyond, found)) or (varying and self.wide):
            return IndexWidth(True)
        return IndexWidth(False, largest(varying))


ALWAYS_WIDE = SymbolicIndices()
"""Of kernels whose launches ask for no bounds."""


def index_bounds(expression: sympy.Expr, sizes: Sizes) -> list[Bound]:
    """What the magnitudes of ``expression``, and of all that it is computed of, do not pass."""
    parts: list[Bound] = []
    return [_bound(expression, sizes, parts), *parts]


def body_bounds(
    body: LoopBody, sizes: Sizes, registers: Collection[str] = frozenset()
) -> list[Bound]:
    """The bounds of the indices that ``body`` computes, except those of buffers that are ``registers``."""
    known = {**sizes, **{i.symbol: i.size for i in body.walk() if isinstance(i, Indirect)}}
    found = bounds_of(known.values(), known)
    for instruction in body.walk():
        if isinstance(instruction, Access) and instruction.buffer in registers:
            continue
        if isinstance(instruction, IndexValue) and is_beyond(instruction.index, known):
            continue  # computed in 64 bits in any kernel
        found += bounds_of(instruction.expressions, known)
    return found


def bounds_of(expressions: Iterable[sympy.Expr], sizes: Sizes) -> list[Bound]:
    """The bounds of several index expressions."""
    return [bound for expression in expressions for bound in index_bounds(expression, sizes)]


def is_beyond(expression: sympy.Expr, sizes: Sizes) -> bool:
    """Whether ``expression``, or a part of it, may pass 32 bits in every call."""
    return any(map(_is_beyond, index_bounds(expression, sizes)))


def magnitude(expression: sympy.Expr, sizes: Sizes) -> float:
    """A bound on the absolute value of ``expression`` and its parts; infinite where a size is symbolic."""
    found = index_bounds(expression, sizes)
    return max(math.inf if bound.keys() - {()} else bound.get((), 0) for bound in found)


def largest(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Those of ``bounds`` by which the others are below a limit, too."""
    kept: list[Bound] = []
    for bound in sorted(bounds, key=_degree, reverse=True):
        if not any(_covers(other, bound) for other in kept):
            kept.append(bound)
    return tuple(kept)


def _is_beyond(bound: Bound) -> bool:
    return sum(bound.values()) >= INT32_SAFE


def _degree(bound: Bound) -> tuple[int, float]:
    return max(map(len, bound), default=0), sum(bound.values())


def _covers(bound: Bound, other: Bound) -> bool:
    """Whether ``bound`` is not below ``other``, product by product."""
    left = dict(bound)
    for factors, wanted in sorted(other.items(), key=lambda item: -len(item[0])):
        for candidate in sorted(left, key=len):
            if Counter(factors) <= Counter(candidate):
                taken = min(wanted, left[candidate])
                left[candidate] -= taken
                wanted -= taken
        if wanted > 0:
            return False
    return True


# -- expressions -----------------------------------------------------------------------------------------


def _bound(expression: sympy.Expr, sizes: Sizes, parts: list[Bound]) -> Bound:
    """The bound of a value; ``parts`` gets those of operands that may be larger than what is made of them."""
    if expression.is_Integer:
        return {(): abs(int(expression))}
    if expression.is_Symbol:
        size = sizes.get(expression)
        return {(expression,): 1} if size is None else _bound(size, sizes, parts)
    if expression.is_Mul:
        return _bound_of_product(expression.args, sizes, parts)
    operands = [_bound(a, sizes, parts) for a in expression.args]
    if expression.is_Add:
        return functools.reduce(_sum, operands)
    if expression.is_Pow:
        return functools.reduce(_product, operands[:1] * int(expression.args[1]))
    parts += operands
    if not isinstance(expression, FloorDiv | Mod | sympy.Min | sympy.Max):
        return {(): math.inf}
    if sizes.keys().isdisjoint(expression.free_symbols):
        return {(expression,): 1}
    if isinstance(expression, FloorDiv):
        return _quotient(operands[0], expression.args[1])
    if isinstance(expression, Mod):
        return operands[1]
    return functools.reduce(_maximum, operands)


def _bound_of_product(factors: tuple[sympy.Expr, ...], sizes: Sizes, parts: list[Bound]) -> Bound:
    """A quotient times its divisor is what was divided, up to one divisor."""
    for quotient in factors:
        if isinstance(quotient, FloorDiv) and (divisor := quotient.args[1]) in factors:
            _bound(quotient, sizes, parts)
            whole = _bound(quotient.args[0] + divisor, sizes, parts)
            rest = [_bound(f, sizes, parts) for f in factors if f not in (quotient, divisor)]
            return functools.reduce(_product, rest, whole)
    return functools.reduce(_product, [_bound(f, sizes, parts) for f in factors])


def _merged(left: Bound, right: Bound, merge: Callable[[float, float], float]) -> Bound:
    keys = (*left, *right)
    return {key: merge(left.get(key, 0), right.get(key, 0)) for key in keys}


def _sum(left: Bound, right: Bound) -> Bound:
    return _merged(left, right, lambda a, b: a + b)


def _maximum(left: Bound, right: Bound) -> Bound:
    return _merged(left, right, max)


def _product(left: Bound, right: Bound) -> Bound:
    found: dict[tuple[sympy.Expr, ...], float] = {}
    for a, times in left.items():
        for b, more in right.items():
            key = tuple(sorted(a + b, key=str))
            found[key] = found.get(key, 0) + (times * more if times and more else 0)
    return found


def _quotient(bound: Bound, divisor: sympy.Expr) -> Bound:
    """Of a division that rounds down, so that magnitudes below zero grow by less than 1."""
    if not divisor.is_Integer or divisor == 0:
        return bound
    by = abs(int(divisor))
    if not bound.keys() - {()}:
        number = bound.get((), 0)
        return {(): number if math.isinf(number) else -(-number // by)}
    return _sum({key: times / by for key, times in bound.items()}, {(): 1})
