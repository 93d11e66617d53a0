"""Sizes padded up to a multiple, as programs write them, in one form that says so."""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod


@functools.lru_cache(maxsize=4096)
def rounded_up(expression: Any) -> Any:
    """``expression`` with ``16 * ((n + 15) // 16)`` in the place of ``n + (16 - n % 16) % 16``.

    Of ``n + -n % 16`` too.  That it is a multiple of 16, and not zero where ``n`` isn't, is then known by its
    form, and of all that is computed of it: a chunk's length, the number of chunks, strides.
    """
    if not expression.has(Mod, PythonMod):
        return expression
    sums = {one: _with_multiples(one) for one in expression.atoms(sympy.Add)}
    changed = {one: other for one, other in sums.items() if other is not one}
    return expression.xreplace(changed) if changed else expression


def _with_multiples(total: sympy.Add) -> sympy.Expr:
    """A sum in which each number and its padding are one multiple; itself where there are none."""
    terms = set(total.args)
    for term in total.args:
        padding = next(
            (f for f in sympy.Mul.make_args(term) if isinstance(f, Mod | PythonMod)), None
        )
        if padding is None:
            continue
        unit = padding.args[1]
        if not (unit.is_Integer and unit > 0):
            continue
        number = _padded(padding.args[0], unit)
        factor = term / padding
        parts = {*sympy.Add.make_args(sympy.expand(factor * number))}
        if parts <= terms - {term}:
            rest = terms - {term} - parts
            return sympy.Add(*rest, factor * unit * FloorDiv(number + unit - 1, unit))
    return total


def _padded(padding: Any, unit: Any) -> Any:
    """What ``padding % unit`` fills up to a multiple: ``n`` of ``-n`` and of ``unit - n % unit``."""
    inner = {
        found: found.args[0] for found in padding.atoms(Mod, PythonMod) if found.args[1] == unit
    }
    constant, number = sympy.expand(-padding.xreplace(inner)).as_coeff_Add()
    return number + constant % unit
