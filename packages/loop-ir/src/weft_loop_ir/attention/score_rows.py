"""What the loops of a kernel are to the rows of a batch of matrices that it reads row by row."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from weft_loop_ir.digits import Digit, digits_of
from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.ir import Kernel


@dataclass(frozen=True)
class ScoreRows:
    """``digits`` are the loops, of ``batch * queries + row``; a loop of size 1 is none.

    ``batch`` and ``row`` are the matrix and its row as expressions over the loops; ``query`` is the row
    where no loop runs over rows of several matrices, else None.  ``first_key``: the index of a row's first
    element.
    """

    digits: tuple[Digit, ...]
    batches: sympy.Expr
    queries: sympy.Expr
    batch: sympy.Expr
    row: sympy.Expr
    query: sympy.Expr | None
    first_key: sympy.Expr

    @property
    def number(self) -> sympy.Expr:
        """The number of the row among those of all matrices."""
        return sympy.Add(*(digit.loop.symbol * digit.step for digit in self.digits))

    @property
    def positions(self) -> frozenset[sympy.Symbol]:
        """The loops that vary with the row of a matrix."""
        loops = frozenset(digit.loop.symbol for digit in self.digits)
        return loops if self.query is None else loops & self.query.free_symbols


def score_rows_of(
    index: sympy.Expr, kernel: Kernel, batches: sympy.Expr, queries: sympy.Expr, keys: sympy.Expr
) -> ScoreRows | None:
    """The loops by ``index``, where an element of dense matrices ``[batches, queries, keys]`` lies.

    None unless the outer loops go through all rows once, and one loop more along a row.
    """
    along = index.free_symbols & {v.symbol for v in kernel.inner_loops}
    if len(along) != 1 or index.coeff(min(along, key=str)) != 1:
        return None
    first_key = sympy.expand(index - along.pop())
    outer = {v.symbol: v.size for v in kernel.outer if v.size != 1}
    digits = digits_of(first_key, outer, keys)
    if digits is None or sympy.expand(sympy.prod(outer.values()) - batches * queries) != 0:
        return None
    # how many loops run within a matrix
    starts = (k for k, d in enumerate(digits) if sympy.expand(d.step - queries) == 0)
    inside = next(starts, len(digits) if batches == 1 else None)
    number = sympy.Add(*(d.loop.symbol * d.step for d in digits))
    if inside is None:
        batch, row = FloorDiv(number, queries), Mod(number, queries)
    else:
        row = sympy.Add(*(d.loop.symbol * d.step for d in digits[:inside]))
        batch = sympy.Add(
            *(d.loop.symbol * sympy.cancel(d.step / queries) for d in digits[inside:])
        )
    query = None if inside is None else row
    return ScoreRows(digits, batches, queries, batch, row, query, first_key)
