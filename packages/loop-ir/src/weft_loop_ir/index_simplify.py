"""Simplification of floor division and modulo in index expressions, under known loop ranges.

The rules are the few that views produce, each exact over the integers: splitting off multiples of the
divisor, dropping what is provably in ``[0, divisor)``, nesting of divisions, and the recombination
``d * (e // d) + e % d == e``.  SymPy's ``simplify`` is never called.
"""

from __future__ import annotations

import functools
import math

import sympy

from weft_loop_ir.expressions import FloorDiv, Mod, integer


class IndexRanges:
    """The extents of loop symbols, with the simplifier's caches for them.

    A symbol with an extent ``n`` takes the values ``0 .. n - 1``.  Other symbols are sizes: at least 0, and
    at least 1 where SymPy knows them to be positive.  Get instances from :func:`ranges_for`.
    """

    def __init__(self, extents: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> None:
        self.extents = dict(extents)
        self._bounds: dict[sympy.Expr, tuple[int | None, int | None]] = {}
        self._divisions: dict[tuple[sympy.Expr, sympy.Expr], sympy.Expr] = {}
        self._modulos: dict[tuple[sympy.Expr, sympy.Expr], sympy.Expr] = {}
        self._simplified: dict[sympy.Expr, sympy.Expr] = {}

    # -- bounds -------------------------------------------------------------------------------------

    def bounds(self, expression: sympy.Expr) -> tuple[int | None, int | None]:
        """Inclusive integer bounds of ``expression``; None where none is known."""
        known = self._bounds.get(expression)
        if known is None:
            known = self._bounds[expression] = self._compute_bounds(expression)
        return known

    def _compute_bounds(self, expression: sympy.Expr) -> tuple[int | None, int | None]:
        if isinstance(expression, sympy.Integer):
            return int(expression), int(expression)
        if isinstance(expression, sympy.Symbol):
            extent = self.extents.get(expression)
            if extent is None:
                return (
                    1 if expression.is_positive else 0 if expression.is_nonnegative else None
                ), None
            _, high = self.bounds(extent)
            return 0, None if high is None else max(high - 1, 0)
        if isinstance(expression, sympy.Add):
            parts = [self.bounds(a) for a in expression.args]
            lows = [low for low, _ in parts if low is not None]
            highs = [high for _, high in parts if high is not None]
            return (
                sum(lows) if len(lows) == len(parts) else None,
                sum(highs) if len(highs) == len(parts) else None,
            )
        if isinstance(expression, sympy.Mul):
            return self._product_bounds(expression)
        if isinstance(expression, FloorDiv):
            low, high = self.bounds(expression.args[0])
            divisor_low, divisor_high = self.bounds(expression.args[1])
            if divisor_low is None or divisor_low < 1:
                return None, None
            exact = divisor_low == divisor_high
            return (
                None if low is None else (low // divisor_low if exact else min(low, 0)),
                None
                if high is None
                else max(high // divisor_low, 0 if not exact else high // divisor_low),
            )
        if isinstance(expression, Mod):
            _, divisor_high = self.bounds(expression.args[1])
            return 0, None if divisor_high is None else divisor_high - 1
        return (0 if expression.is_nonnegative else None), None

    def _product_bounds(self, expression: sympy.Mul) -> tuple[int | None, int | None]:
        low: int | None = 1
        high: int | None = 1
        for argument in expression.args:
            next_low, next_high = self.bounds(argument)
            if next_low is not None and next_low == next_high and next_low < 0:
                low, high = (
                    None if high is None else high * next_low,
                    None if low is None else low * next_low,
                )
                continue
            if next_low is None or next_low < 0 or low is None:
                return None, None
            if low < 0:  # a negative constant times something not negative
                if next_high is None:
                    low = None
                    high = (
                        None
                        if high is None
                        else max(high * next_low, 0)
                        if high > 0
                        else high * next_low
                    )
                    continue
                low, high = low * next_high, None if high is None else high * next_low
                continue
            low = low * next_low
            high = None if high is None or next_high is None else high * next_high
        return low, high

    def _upper(self, expression: sympy.Expr) -> sympy.Expr | None:
        """A symbolic upper bound of a sum of products of loop symbols, None when not that simple."""
        terms = []
        for term in sympy.Add.make_args(expression):
            factors = []
            for factor in sympy.Mul.make_args(term):
                extent = self.extents.get(factor)
                if extent is not None:
                    factors.append(extent - 1)
                elif isinstance(factor, Mod):
                    factors.append(factor.args[1] - 1)
                elif self.is_nonnegative(factor) and not isinstance(factor, FloorDiv):
                    factors.append(factor)
                else:
                    return None
            terms.append(sympy.Mul(*factors))
        return sympy.expand(sympy.Add(*terms))

    def is_nonnegative(self, expression: sympy.Expr) -> bool:
        low, _ = self.bounds(expression)
        return low is not None and low >= 0

    def in_range(self, expression: sympy.Expr, divisor: sympy.Expr) -> bool:
        """Whether ``0 <= expression < divisor`` is provable."""
        low, high = self.bounds(expression)
        if low is None or low < 0:
            return False
        divisor_low, _ = self.bounds(divisor)
        if high is not None:
            return divisor_low is not None and high < divisor_low
        upper = self._upper(expression)
        return upper is not None and self.is_nonnegative(sympy.expand(divisor - 1 - upper))

    # -- rules --------------------------------------------------------------------------------------

    def floor_div(self, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        """``dividend // divisor``, simplified."""
        key = (dividend, divisor)
        known = self._divisions.get(key)
        if known is None:
            known = self._divisions[key] = self._floor_div(dividend, divisor)
        return known

    def _floor_div(self, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        if divisor == 1 or dividend == 0:
            return dividend
        if divisor == 0:  # the extent of an empty loop: never executed
            return sympy.S.Zero
        quotient, rest = split_multiples(dividend, divisor)
        if self.in_range(rest, divisor):
            return quotient
        if isinstance(rest, FloorDiv):
            return quotient + self.floor_div(rest.args[0], rest.args[1] * divisor)
        if isinstance(rest, Mod):
            inner = exact_quotient(rest.args[1], divisor)
            if inner is not None:
                return quotient + self.modulo(self.floor_div(rest.args[0], divisor), inner)
        common = common_factor(rest, divisor)
        if common > 1:
            # floor((c*e + k) / (c*d)) == floor(e / d) for 0 <= k < c
            multiples, remainder = split_multiples(rest, integer(common))
            if self.in_range(remainder, integer(common)):
                return quotient + self.floor_div(
                    multiples, exact_quotient(divisor, integer(common))
                )
        return quotient + FloorDiv(rest, divisor)

    def modulo(self, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        """``dividend % divisor``, simplified."""
        key = (dividend, divisor)
        known = self._modulos.get(key)
        if known is None:
            known = self._modulos[key] = self._modulo(dividend, divisor)
        return known

    def _modulo(self, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        if divisor in (0, 1) or dividend == 0:
            return sympy.S.Zero
        _, rest = split_multiples(dividend, divisor)
        if self.in_range(rest, divisor):
            return rest
        if isinstance(rest, Mod) and exact_quotient(rest.args[1], divisor) is not None:
            return self.modulo(rest.args[0], divisor)
        common = common_factor(rest, divisor)
        if common > 1:
            # (c*e + k) mod (c*d) == c * (e mod d) + k for 0 <= k < c
            multiples, remainder = split_multiples(rest, integer(common))
            if self.in_range(remainder, integer(common)):
                inner = self.modulo(multiples, exact_quotient(divisor, integer(common)))
                return sympy.expand_mul(common * inner) + remainder
        return Mod(rest, divisor)

    def simplify(self, expression: sympy.Expr) -> sympy.Expr:
        """``expression`` with every division and modulo simplified and recombined."""
        if not has_division(expression):
            return expression
        known = self._simplified.get(expression)
        if known is None:
            known = self._simplified[expression] = self._recombine(self._rebuild(expression))
        return known

    def _rebuild(self, expression: sympy.Expr) -> sympy.Expr:
        if not expression.args or not has_division(expression):
            return expression
        arguments = [self._rebuild(a) for a in expression.args]
        if isinstance(expression, FloorDiv):
            return self.floor_div(*arguments)
        if isinstance(expression, Mod):
            return self.modulo(*arguments)
        return sympy.expand_mul(expression.func(*arguments))

    def _recombine(self, expression: sympy.Expr) -> sympy.Expr:
        """Apply ``c * d * (e // d) + c * (e % d) -> c * e`` until it applies no more."""
        while isinstance(expression, sympy.Add):
            replaced = self._recombine_once(expression)
            if replaced is None:
                break
            expression = replaced
        return expression

    def _recombine_once(self, expression: sympy.Add) -> sympy.Expr | None:
        terms = expression.args
        for position, term in enumerate(terms):
            for factor in sympy.Mul.make_args(term):
                if not isinstance(factor, Mod):
                    continue
                dividend, divisor = factor.args
                scale = term / factor
                wanted = sympy.expand_mul(scale * divisor * self.floor_div(dividend, divisor))
                missing = set(sympy.Add.make_args(wanted))
                others = terms[:position] + terms[position + 1 :]
                if missing <= set(others):
                    kept = [t for t in others if t not in missing]
                    combined = sympy.expand_mul(scale * dividend)
                    return self._rebuild(sympy.Add(combined, *kept))
        return None


@functools.lru_cache(maxsize=4096)
def ranges_for(extents: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> IndexRanges:
    """The shared :class:`IndexRanges` of these loop extents."""
    return IndexRanges(extents)


@functools.lru_cache(maxsize=65536)
def has_division(expression: sympy.Expr) -> bool:
    """Whether ``FloorDiv`` or ``Mod`` occurs in ``expression``."""
    if isinstance(expression, FloorDiv | Mod):
        return True
    return any(has_division(a) for a in expression.args)


@functools.lru_cache(maxsize=65536)
def exact_quotient(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """``dividend / divisor`` when it is an integer polynomial, else None."""
    if isinstance(divisor, sympy.Integer):
        if isinstance(dividend, sympy.Integer):
            return (
                integer(int(dividend) // int(divisor))
                if int(dividend) % int(divisor) == 0
                else None
            )
        coefficient, factors = dividend.as_coeff_Mul()
        if isinstance(dividend, sympy.Add):
            return None
        if not isinstance(coefficient, sympy.Integer) or int(coefficient) % int(divisor):
            return None
        return integer(int(coefficient) // int(divisor)) * factors
    quotient = dividend / divisor
    if quotient.as_numer_denom()[1] == 1:
        return quotient
    return None


@functools.lru_cache(maxsize=65536)
def split_multiples(expression: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """``(q, r)`` with ``expression == q * divisor + r``, every term of ``r`` not divisible."""
    quotients = []
    rest = []
    for term in sympy.Add.make_args(expression):
        quotient = exact_quotient(term, divisor)
        if quotient is not None:
            quotients.append(quotient)
        elif isinstance(term, sympy.Integer) and isinstance(divisor, sympy.Integer):
            quotients.append(integer(int(term) // int(divisor)))
            rest.append(integer(int(term) % int(divisor)))
        else:
            rest.append(term)
    return sympy.Add(*quotients), sympy.Add(*rest)


def common_factor(expression: sympy.Expr, divisor: sympy.Expr) -> int:
    """The largest divisor of ``divisor`` that divides the non-constant terms of ``expression``."""
    if not isinstance(divisor, sympy.Integer):
        return 1
    common = int(divisor)
    terms = [t for t in sympy.Add.make_args(expression) if not isinstance(t, sympy.Integer)]
    best = 1
    for term in terms:
        coefficient = term.as_coeff_Mul()[0]
        if isinstance(coefficient, sympy.Integer):
            candidate = math.gcd(common, abs(int(coefficient)))
            best = max(best, candidate)
    return best if best < common else 1
