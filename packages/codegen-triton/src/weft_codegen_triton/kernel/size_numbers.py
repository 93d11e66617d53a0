"""What sizes alone determine in a kernel's indices: the host computes it, and hands it over like a size.

So no thread multiplies sizes, and the compiler can be told what it can't see by itself: that 56 * 56 is a
multiple of 16 though 56 is none.
"""

from __future__ import annotations

from collections.abc import Collection

import sympy
from weft_loop_ir import FloorDiv, Mod


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
