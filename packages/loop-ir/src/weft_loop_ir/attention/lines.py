"""What the loops of a kernel are to the lines of a batch of matrices that it reads row by row."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.ir import Kernel, LoopVariable


@dataclass(frozen=True)
class Digit:
    """``loop`` is ``(batch * queries + query) // step % loop.size``."""

    loop: LoopVariable
    step: sympy.Expr


@dataclass(frozen=True)
class Lines:
    """``digits`` are the loops, fastest first; a loop of size 1 is none.

    ``batch`` and ``line`` are the matrix and its line as expressions over the loops; ``query`` is the line
    where no loop runs over lines of several matrices, else None.  ``first_key``: the index of a line's first
    element.
    """

    digits: tuple[Digit, ...]
    batches: sympy.Expr
    queries: sympy.Expr
    batch: sympy.Expr
    line: sympy.Expr
    query: sympy.Expr | None
    first_key: sympy.Expr

    @property
    def number(self) -> sympy.Expr:
        """The number of the line among those of all matrices."""
        return sympy.Add(*(digit.loop.symbol * digit.step for digit in self.digits))

    @property
    def positions(self) -> frozenset[sympy.Symbol]:
        """The loops that vary with the line of a matrix."""
        loops = frozenset(digit.loop.symbol for digit in self.digits)
        return loops if self.query is None else loops & self.query.free_symbols


def lines_of(
    index: sympy.Expr, kernel: Kernel, batches: sympy.Expr, queries: sympy.Expr, keys: sympy.Expr
) -> Lines | None:
    """The loops by ``index``, where an element of dense matrices ``[batches, queries, keys]`` lies.

    None unless the outer loops go through all lines once, and one loop more along a line.
    """
    outer = {loop.symbol: loop for loop in kernel.outer}
    along = index.free_symbols & {v.symbol for stage in kernel.stages for v in stage.inner}
    if len(along) != 1 or index.coeff(min(along, key=str)) != 1:
        return None
    (key,) = along
    first_key = sympy.expand(index - key)
    steps = {
        symbol: sympy.cancel(first_key.coeff(symbol) / keys)
        for symbol, loop in outer.items()
        if loop.size != 1
    }
    whole = sympy.Add(*(symbol * step * keys for symbol, step in steps.items()))
    if sympy.expand(first_key - whole) != 0:
        return None
    digits: list[Digit] = []
    expected: sympy.Expr = sympy.S.One
    inside: int | None = None  # how many loops run within a matrix
    while steps:
        if inside is None and sympy.expand(expected - queries) == 0:
            inside = len(digits)
        found = [s for s, step in steps.items() if sympy.expand(step - expected) == 0]
        if len(found) != 1:
            return None
        digits.append(Digit(outer[found[0]], steps.pop(found[0])))
        expected = sympy.expand(expected * digits[-1].loop.size)
    if sympy.expand(expected - batches * queries) != 0:
        return None
    if inside is None and batches == 1:
        inside = len(digits)
    row = sympy.Add(*(d.loop.symbol * d.step for d in digits))
    if inside is None:
        batch, line = FloorDiv(row, queries), Mod(row, queries)
    else:
        line = sympy.Add(*(d.loop.symbol * d.step for d in digits[:inside]))
        batch = sympy.Add(
            *(d.loop.symbol * sympy.cancel(d.step / queries) for d in digits[inside:])
        )
    query = None if inside is None else line
    return Lines(tuple(digits), batches, queries, batch, line, query, first_key)
