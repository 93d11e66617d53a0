"""Which sizes of a call should be multiples of 16 for kernels to read and write 16 bytes at once.

A thread does so where the compiler knows that an address is a multiple of 16 and that a mask is the same
for all that it covers.  Of numbers in a kernel's text it knows; of sizes that vary it has to be told.  Most
lengths that matter are multiples of 16, so kernels are compiled for calls that have such and for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import sympy
from weft_loop_ir import Kernel, LoopVariable

from weft_codegen_triton.kernel.blocks import accesses, columns_are_contiguous, extent
from weft_codegen_triton.kernel.expressions import unit_stride

SIZE_MULTIPLE = 16
"""What sizes are multiples of: then so are the bytes of so many elements."""

Factors = frozenset[sympy.Symbol]
"""Sizes that are multiplied: the product is a multiple of 16 if one of them is."""


def aligning_factors(kernel: Kernel, sizes: Collection[sympy.Symbol]) -> frozenset[Factors]:
    """The products of ``sizes`` that have to be multiples of 16 for the accesses of ``kernel`` to be wide."""
    expressions = [e for stage in kernel.stages for e in accesses(stage.body)]
    ranges = [stage.inner for stage in kernel.stages if stage.inner]
    if not ranges or columns_are_contiguous(kernel):
        ranges.append(kernel.outer)
    else:  # what is read or written once a row counts little
        symbols = {loop.symbol for inner in ranges for loop in inner}
        expressions = [e for e in expressions if not symbols.isdisjoint(e.free_symbols)]
    found = [_factors(expression, sizes) for expression in expressions]
    for loops in dict.fromkeys(ranges):
        if loops and any(unit_stride(e, loops[-1].symbol) for e in expressions):
            found += [_factors(count, sizes) for count in _extents(loops)]
    return frozenset(factors for some in found for factors in some)


def aligned_sizes(
    wanted: Iterable[Factors], hints: Mapping[sympy.Symbol, sympy.Integer]
) -> tuple[sympy.Symbol, ...]:
    """Sizes of which each of ``wanted`` has one, by name.

    Where the sizes of the first call, ``hints``, have multiples of 16, others are left as they are.
    """
    products = list(wanted)
    counts = Counter(size for factors in products for size in factors)
    chosen: set[sympy.Symbol] = set()
    for factors in sorted(products, key=lambda f: (len(f), sorted(map(str, f)))):
        if chosen.isdisjoint(factors):
            chosen.add(max(factors, key=lambda s: (_is_multiple(s, hints), counts[s], str(s))))
    multiples = {size for size in chosen if _is_multiple(size, hints)}
    return tuple(sorted(multiples or chosen, key=str))


def _is_multiple(size: sympy.Symbol, hints: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    return bool(hints.get(size, sympy.S.Zero) % SIZE_MULTIPLE == 0)


def _extents(loops: tuple[LoopVariable, ...]) -> list[sympy.Expr]:
    """What an index over ``loops`` is compared with, and what it is divided by first."""
    return [extent(loops), *(loop.size for loop in loops[1:][-1:])]


def _factors(expression: sympy.Expr, sizes: Collection[sympy.Symbol]) -> Iterator[Factors]:
    """The factors that are sizes, of each term of a sum that is no multiple of 16 without them."""
    for term in sympy.Add.make_args(expression):
        factors = sympy.Mul.make_args(term)
        if any(f.is_Integer and f % SIZE_MULTIPLE == 0 for f in factors):
            continue
        bases = {base for f in factors for base in (f.args[:1] if f.is_Pow else (f,))}
        if found := frozenset(bases & set(sizes)):
            yield found
            continue
        for factor in factors:
            if factor.is_Add:
                yield from _factors(factor, sizes)
