"""Which sizes of a call should be multiples of 16 for kernels to read and write 16 bytes at once.

A thread does so where the compiler knows that an address is a multiple of 16 and that a mask is the same
for all that it covers.  Of numbers in a kernel's text it knows; of sizes that vary it has to be told.  Most
lengths that matter are multiples of 16, or rows of images have such many pixels, so kernels are compiled for
calls that have such and for others.

What sizes alone determine in a kernel's indices the host computes, and hands over like a size.  So no thread
multiplies sizes, and the compiler can be told what it can't see by itself: that 56 * 56 is a multiple of 16
though 56 is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import sympy
from weft_loop_ir import FloorDiv, Kernel, LoopVariable, Mod
from weft_loop_ir.expressions import unit_stride

from weft_codegen_triton.kernel.blocks import columns_are_contiguous, extent

SIZE_MULTIPLE = 16
"""What sizes are multiples of: then so are the bytes of so many elements."""


def aligning_products(
    kernel: Kernel, sizes: Collection[sympy.Symbol], numbers: Collection[sympy.Expr]
) -> frozenset[sympy.Expr]:
    """The products of ``sizes`` that have to be multiples of 16 for the accesses of ``kernel`` to be wide.

    ``numbers`` are what it is handed: a product by which none of them is one stands for its sizes.
    """
    expressions = [access.index for access in kernel.accesses()]
    ranges = list(kernel.ranges)
    if not ranges or columns_are_contiguous(kernel):
        ranges.append(kernel.outer)
    else:  # what is read or written once a row counts little
        symbols = {loop.symbol for inner in ranges for loop in inner}
        expressions = [e for e in expressions if not symbols.isdisjoint(e.free_symbols)]
    found = [_products(expression, sizes) for expression in expressions]
    for loops in dict.fromkeys(ranges):
        if loops and any(unit_stride(e, loops[-1].symbol) for e in expressions):
            found += [_products(count, sizes) for count in _extents(loops)]
    wanted: set[sympy.Expr] = set()
    for product in {product for some in found for product in some}:
        is_known = any(is_aligned(number, (product,)) for number in numbers)
        wanted |= {product} if is_known else _sizes(product)
    return frozenset(wanted)


def aligned_products(
    wanted: Iterable[sympy.Expr], hints: Mapping[sympy.Symbol, sympy.Integer]
) -> tuple[sympy.Expr, ...]:
    """Sizes, and products of them, by which each of ``wanted`` is a multiple of 16; by name.

    A size is taken where the first call's, by ``hints``, is such a multiple, else the product if it is one.
    Where there are any others are left as they are.
    """
    products = set(wanted)
    counts = Counter(size for product in products for size in _sizes(product))
    chosen: set[sympy.Expr] = set()

    def order(product: sympy.Expr) -> tuple[bool, int, str]:
        return not is_multiple(product, hints), len(_sizes(product)), str(product)

    for product in sorted(products, key=order):
        if is_aligned(product, chosen):
            continue
        sizes = sorted(_sizes(product), key=lambda s: (is_multiple(s, hints), counts[s], str(s)))
        if sizes and is_multiple(sizes[-1], hints) == is_multiple(product, hints):
            chosen.add(sizes[-1])
        else:
            chosen.add(product)
    multiples = {product for product in chosen if is_multiple(product, hints)}
    return tuple(sorted(multiples or chosen, key=str))


def is_aligned(number: sympy.Expr, products: Iterable[sympy.Expr]) -> bool:
    """Whether ``number`` is a multiple of 16 where ``products`` are."""
    return all(
        any(divides(product, term) for product in products)
        or term.as_coeff_Mul()[0] % SIZE_MULTIPLE == 0
        for term in sympy.Add.make_args(number)
    )


def is_multiple(number: sympy.Expr, hints: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    """Whether ``number`` is a multiple of 16 where sizes are what ``hints`` say."""
    known = number.xreplace(hints)
    return bool(known.is_Integer) and int(known) % SIZE_MULTIPLE == 0


def product_of(term: sympy.Expr, sizes: Collection[sympy.Symbol]) -> sympy.Expr:
    """The product of the factors of ``term`` that ``sizes`` determine; 1 if there are none."""
    known = set(sizes)
    factors = [f for f in sympy.Mul.make_args(term) if f.free_symbols and f.free_symbols <= known]
    return sympy.Mul(*factors)


def divides(product: sympy.Expr, number: sympy.Expr) -> bool:
    """Whether all factors of ``product`` are some of ``number``, as often."""
    powers = number.as_powers_dict()
    return all(powers[base] >= times for base, times in product.as_powers_dict().items())


def _sizes(product: sympy.Expr) -> set[sympy.Symbol]:
    """The factors of ``product`` that are sizes."""
    return {base for base in product.as_powers_dict() if base.is_Symbol}


def _extents(loops: tuple[LoopVariable, ...]) -> list[sympy.Expr]:
    """What an index over ``loops`` is compared with, and what it is divided by first."""
    return [extent(loops), *(loop.size for loop in loops[1:][-1:])]


def _products(expression: sympy.Expr, sizes: Collection[sympy.Symbol]) -> Iterator[sympy.Expr]:
    """The products of ``sizes`` in the terms of a sum that are no multiples of 16 without them."""
    for term in sympy.Add.make_args(expression):
        factors = sympy.Mul.make_args(term)
        if any(f.is_Integer and f % SIZE_MULTIPLE == 0 for f in factors):
            continue
        if (product := product_of(term, sizes)) != 1:
            yield product
            continue
        for factor in factors:
            if factor.is_Add:
                yield from _products(factor, sizes)


# -- numbers of sizes ----------------------------------------------------------------------------------


class SizeNumbers:
    """Names for the numbers that ``sizes`` determine, in the order in which a kernel's text mentions them.

    ``mentioned`` are the symbols in that text: of other sizes only the host computes something.
    """

    def __init__(self, sizes: Collection[sympy.Symbol] = ()) -> None:
        self.sizes = frozenset(sizes)
        self.names: dict[sympy.Expr, sympy.Symbol] = {}
        self.mentioned: set[sympy.Symbol] = set()

    def named(self, expression: sympy.Expr) -> sympy.Expr:
        """``expression`` with a symbol for each largest part that is one of these numbers."""
        free = expression.free_symbols
        if expression.is_Atom or free.isdisjoint(self.sizes):
            return expression
        if free <= self.sizes:
            coefficient, number = expression.as_coeff_Mul()
            is_small = number.is_Symbol or not _is_defined(number)
            return expression if is_small else coefficient * self._symbol(number)
        if not expression.is_Mul:
            return expression.func(*map(self.named, expression.args))
        others = [a for a in expression.args if a.is_Integer or not a.free_symbols <= self.sizes]
        number = sympy.Mul(*(a for a in expression.args if a not in others))
        return sympy.Mul(self.named(number), *map(self.named, others))

    def _symbol(self, number: sympy.Expr) -> sympy.Symbol:
        found = self.names.get(number)
        if found is None:
            sign = {k: True for k in ("positive", "nonnegative") if getattr(number, f"is_{k}")}
            found = sympy.Symbol(f"extent{len(self.names)}", integer=True, **sign)
            self.names[number] = found
        return found


def _is_defined(number: sympy.Expr) -> bool:
    """Whether the host can compute ``number`` in every call: it divides by no size, which may be 0."""
    return all(part.args[1].is_Integer for part in number.atoms(FloorDiv, Mod))
