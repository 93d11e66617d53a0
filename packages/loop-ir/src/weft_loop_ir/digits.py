"""Loops as the digits of a number: those that go through the elements of dense memory, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import LoopVariable


@dataclass(frozen=True)
class Digit:
    """``loop`` is ``number // step % loop.size``."""

    loop: LoopVariable
    step: sympy.Expr


def digits_of(
    index: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr], unit: sympy.Expr = sympy.S.One
) -> tuple[Digit, ...] | None:
    """The loops of these ``sizes`` as digits of ``index / unit``, fastest first; None unless they are these.

    None of them has a size of 1.
    """
    index = sympy.expand(index)
    steps = {symbol: index.coeff(symbol) for symbol in sizes}
    if sympy.expand(index - sympy.Add(*(s * step for s, step in steps.items()))) != 0:
        return None
    digits: list[Digit] = []
    step: sympy.Expr = sympy.S.One
    while steps:
        symbol = next((s for s in steps if sympy.expand(steps[s] - step * unit) == 0), None)
        if symbol is None:
            return None
        del steps[symbol]
        digits.append(Digit(LoopVariable(symbol, sizes[symbol]), step))
        step = sympy.expand(step * sizes[symbol])
    return tuple(digits)


def loop_values(
    loops: Sequence[LoopVariable],
    index: sympy.Expr,
    position: sympy.Expr,
    sizes: Mapping[sympy.Symbol, sympy.Expr],
    count: sympy.Expr,
) -> tuple[tuple[LoopVariable, sympy.Expr], ...] | None:
    """Where ``loops`` are when ``index``, which they tell, is ``position``, over symbols of ``sizes``.

    None unless the loops are the digits of an index into ``count`` elements, so that each is told once.
    """
    still = {loop.symbol: sympy.S.Zero for loop in loops if loop.size == 1}
    moving = {loop.symbol: loop.size for loop in loops if loop.size != 1}
    digits = digits_of(index.xreplace(still), moving)
    if digits is None or sympy.expand(sympy.prod(moving.values()) - count) != 0:
        return None
    ranges = ranges_for(tuple(sizes.items()))
    values = dict.fromkeys(loops, sympy.S.Zero)
    for digit in digits:
        place = ranges.floor_div(position, digit.step)
        is_last = digit is digits[-1]
        values[digit.loop] = place if is_last else ranges.modulo(place, digit.loop.size)
    return tuple(values.items())
