"""Fewer and simpler relations that say the same: unification, ranges, divisibility.

Integers only: a symbol that is no integer keeps its relations as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sympy

from ._torch import Mod, PythonMod, ValueRanges, bound_sympy
from .guard import Reason

_MODULI = (Mod, PythonMod)


@dataclass(frozen=True)
class Relation:
    """A SymPy condition and the line that needs it."""

    condition: sympy.Basic
    reason: Reason


def simplify_relations(relations: Iterable[Relation]) -> tuple[Relation, ...]:
    """Relations that hold exactly where all of ``relations`` do.

    Equal symbols are unified in what follows their equality, bounds of one symbol become one range,
    ``s % 4 == 0`` and ``s % 6 == 0`` become ``s % 12 == 0``, and what follows from the rest is left out.
    Each relation keeps the reason of one that it came from.  Of two equal symbols the one met first stays.
    """
    return _Simplification(relations).run()


class _Simplification:
    def __init__(self, relations: Iterable[Relation]) -> None:
        self._given = [part for relation in relations for part in _conjuncts(relation)]
        self._order: dict[sympy.Basic, int] = {}  # of symbols, as they are met first
        for relation in self._given:
            for symbol in sorted(relation.condition.free_symbols, key=str):
                self._order.setdefault(symbol, len(self._order))
        self._replaced: dict[sympy.Symbol, sympy.Expr] = {}
        self._equalities: list[Relation] = []
        self._lower: dict[sympy.Symbol, tuple[int, Reason]] = {}
        self._upper: dict[sympy.Symbol, tuple[int, Reason]] = {}
        self._divisors: dict[sympy.Expr, tuple[int, Reason]] = {}

    def run(self) -> tuple[Relation, ...]:
        self._unify()
        rest = [relation for relation in self._substituted() if not self._take(relation)]
        rest = self._tighten(rest)
        kept = [relation for relation in rest if not self._is_implied(relation.condition)]
        return tuple(dict.fromkeys((*self._equalities, *self._ranges(), *self._divisions(), *kept)))

    # Unification.

    def _unify(self) -> None:
        """Take ``a == b`` of symbols and ``a == 3``; from there on ``a`` is the other side."""
        remaining = []
        for relation in self._given:
            condition = self._with_replaced(relation.condition)
            if isinstance(condition, sympy.Eq) and self._take_equality(condition, relation.reason):
                continue
            remaining.append(relation)
        self._given = remaining

    def _take_equality(self, condition: sympy.Eq, reason: Reason) -> bool:
        left, right = sorted(condition.args, key=lambda side: self._order.get(side, -1))
        if not isinstance(right, sympy.Symbol) or not _is_plain(left) or not right.is_integer:
            return False
        self._replaced = {s: e.xreplace({right: left}) for s, e in self._replaced.items()}
        self._replaced[right] = left
        self._equalities.append(Relation(sympy.Eq(right, left, evaluate=False), reason))
        return True

    def _with_replaced(self, condition: sympy.Basic) -> sympy.Basic:
        """A condition of what symbols are known to equal; as it is where it divides by what is 0 then."""
        try:
            return condition.xreplace(self._replaced)
        except ZeroDivisionError:
            return condition

    def _substituted(self) -> Iterator[Relation]:
        for relation in self._given:
            condition = self._with_replaced(relation.condition)
            if condition is not sympy.true:
                yield Relation(condition, relation.reason)

    # Ranges and divisibility.

    def _take(self, relation: Relation) -> bool:
        """Take a bound of one symbol, or a divisor, into the tables."""
        condition, reason = relation.condition, relation.reason
        bound = _bound(condition)
        if bound is not None:
            symbol, value, is_lower = bound
            table = self._lower if is_lower else self._upper
            known = table.get(symbol)
            if known is None or (value > known[0] if is_lower else value < known[0]):
                table[symbol] = value, reason
            return True
        division = _division(condition)
        if division is not None:
            dividend, divisor = division
            known = self._divisors.get(dividend)
            divisor = divisor if known is None else math.lcm(divisor, known[0])
            self._divisors[dividend] = divisor, reason
            return True
        return False

    def _tighten(self, relations: list[Relation]) -> list[Relation]:
        """Move the ends of ranges past numbers that are excluded: ``s >= 2`` and ``s != 2``."""
        kept = relations
        while True:
            remaining = [relation for relation in kept if not self._excludes_end(relation)]
            if len(remaining) == len(kept):
                return kept
            kept = remaining

    def _excludes_end(self, relation: Relation) -> bool:
        excluded = _excluded(relation.condition)
        if excluded is None:
            return False
        symbol, value = excluded
        for table, step in ((self._lower, 1), (self._upper, -1)):
            if symbol in table and table[symbol][0] == value:
                table[symbol] = value + step, relation.reason
                return True
        return False

    def _is_implied(self, condition: sympy.Basic) -> bool:
        try:
            condition = condition.replace(self._divides, lambda *_: sympy.S.Zero)
        except ZeroDivisionError:  # by such a remainder: the condition never holds
            return False
        if condition is sympy.true:
            return True
        symbols = condition.free_symbols
        if not all(symbol.is_integer and self._is_possible(symbol) for symbol in symbols):
            return False
        ranges = {symbol: self._range(symbol) for symbol in symbols}
        if not all(_excludes_zero(_bounds(d, ranges)) for d in _divisors(condition)):
            return (
                False  # it does not hold where it divides by 0, of which the analysis knows nothing
            )
        found = _bounds(condition, ranges)
        return found is not None and bool(found.is_bool) and found.lower is sympy.true

    def _divides(self, expression: sympy.Basic) -> bool:
        """Whether ``expression`` is a remainder known to be 0."""
        if not isinstance(expression, _MODULI):
            return False
        dividend, divisor = expression.args
        known = self._divisors.get(dividend)
        return known is not None and isinstance(divisor, sympy.Integer) and known[0] % divisor == 0

    def _is_possible(self, symbol: sympy.Basic) -> bool:
        """Whether some number is in the symbol's range: relations may contradict each other."""
        lower, upper = self._lower.get(symbol), self._upper.get(symbol)
        return lower is None or upper is None or lower[0] <= upper[0]

    def _range(self, symbol: sympy.Symbol) -> ValueRanges[sympy.Expr]:
        lower, upper = self._lower.get(symbol), self._upper.get(symbol)
        return ValueRanges(
            sympy.Integer(lower[0]) if lower else -sympy.oo,
            sympy.Integer(upper[0]) if upper else sympy.oo,
        )

    def _ranges(self) -> Iterator[Relation]:
        for symbol, (value, reason) in self._lower.items():
            yield Relation(sympy.Ge(symbol, value, evaluate=False), reason)
        for symbol, (value, reason) in self._upper.items():
            yield Relation(sympy.Le(symbol, value, evaluate=False), reason)

    def _divisions(self) -> Iterator[Relation]:
        for dividend, (divisor, reason) in self._divisors.items():
            yield Relation(sympy.Eq(Mod(dividend, divisor), 0, evaluate=False), reason)


def _conjuncts(relation: Relation) -> Iterator[Relation]:
    if isinstance(relation.condition, sympy.And):
        for part in relation.condition.args:
            yield from _conjuncts(Relation(part, relation.reason))
    elif relation.condition is not sympy.true:
        yield relation


def _is_plain(expression: sympy.Basic) -> bool:
    return isinstance(expression, sympy.Integer) or (
        isinstance(expression, sympy.Symbol) and bool(expression.is_integer)
    )


def _bound(condition: sympy.Basic) -> tuple[sympy.Symbol, int, bool] | None:
    """``(symbol, value, is_lower)`` of a condition that bounds one integer symbol, inclusively."""
    if not isinstance(condition, sympy.Lt | sympy.Le | sympy.Gt | sympy.Ge):
        return None
    left, right = condition.args
    if isinstance(condition, sympy.Gt | sympy.Ge):
        left, right = right, left
    strict = int(isinstance(condition, sympy.Lt | sympy.Gt))
    # left <= right - strict, that is 0 <= difference
    difference = sympy.expand(right - left - strict)
    symbols = difference.free_symbols
    if len(symbols) != 1 or difference.has(sympy.Function):
        return None
    (symbol,) = symbols
    constant, factor = difference.subs(symbol, 0), difference.coeff(symbol)
    linear = sympy.expand(factor * symbol + constant - difference) == 0
    if not symbol.is_integer or not linear or not isinstance(factor, sympy.Integer):
        return None
    if not isinstance(constant, sympy.Integer):
        return None
    if factor > 0:  # symbol >= -constant / factor, rounded up
        return symbol, -(int(constant) // int(factor)), True
    return symbol, int(constant) // -int(factor), False


def _divisors(condition: sympy.Basic) -> Iterator[sympy.Expr]:
    """What a condition divides by."""
    for division in condition.atoms(sympy.Function):
        if _DIVIDES.search(type(division).__name__):
            yield division.args[1]


def _excludes_zero(found: ValueRanges[sympy.Expr] | None) -> bool:
    return found is not None and (bool(found.lower > 0) or bool(found.upper < 0))


def _bounds(
    expression: sympy.Basic, ranges: dict[sympy.Basic, ValueRanges[sympy.Expr]]
) -> ValueRanges[sympy.Expr] | None:
    """The range of an expression of symbols with ``ranges``; None where the analysis cannot tell."""
    try:
        return bound_sympy(expression, ranges)
    except Exception:  # of whatever kind: the relation stays
        return None


_DIVIDES = re.compile("Div|Mod")
"""Of the names of torch's and SymPy's functions that divide their first argument by the second."""


def _division(condition: sympy.Basic) -> tuple[sympy.Expr, int] | None:
    """``(dividend, divisor)`` of ``dividend % divisor == 0``."""
    if not isinstance(condition, sympy.Eq):
        return None
    for remainder, zero in (condition.args, condition.args[::-1]):
        if zero == 0 and isinstance(remainder, _MODULI):
            dividend, divisor = remainder.args
            if isinstance(divisor, sympy.Integer) and int(divisor) > 0:
                return dividend, int(divisor)
    return None


def _excluded(condition: sympy.Basic) -> tuple[sympy.Symbol, int] | None:
    if not isinstance(condition, sympy.Ne):
        return None
    for symbol, value in (condition.args, condition.args[::-1]):
        if isinstance(symbol, sympy.Symbol) and isinstance(value, sympy.Integer):
            return symbol, int(value)
    return None
