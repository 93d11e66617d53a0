"""The index simplifier is exact: simplified expressions have the same values over the whole range."""

from __future__ import annotations

import itertools

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_loop_ir import FloorDiv, Mod
from weft_loop_ir.expressions import evaluate_index, loop_symbol
from weft_loop_ir.index_simplify import ranges_for

I0, I1, I2 = (loop_symbol("i", k) for k in range(3))
SIZE = sympy.Symbol("s0", integer=True, positive=True)


def expressions() -> st.SearchStrategy[sympy.Expr]:
    leaves = st.sampled_from([I0, I1, I2]) | st.integers(-4, 12).map(sympy.Integer)
    divisors = st.integers(1, 12).map(sympy.Integer)

    def extend(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
        return (
            st.tuples(inner, inner).map(lambda p: p[0] + p[1])
            | st.tuples(inner, st.integers(-3, 8)).map(lambda p: sympy.expand(p[0] * p[1]))
            | st.tuples(inner, divisors).map(lambda p: FloorDiv(*p))
            | st.tuples(inner, divisors).map(lambda p: Mod(*p))
        )

    return st.recursive(leaves, extend, max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(expressions(), st.tuples(*[st.integers(1, 6)] * 3))
def test_simplification_keeps_every_value(
    expression: sympy.Expr, extents: tuple[int, int, int]
) -> None:
    symbols = (I0, I1, I2)
    ranges = ranges_for(tuple((s, sympy.Integer(n)) for s, n in zip(symbols, extents, strict=True)))
    simplified = ranges.simplify(expression)
    low, high = ranges.bounds(expression)
    for point in itertools.product(*(range(n) for n in extents)):
        values = dict(zip(symbols, point, strict=True))
        value = evaluate_index(expression, values)
        assert value == evaluate_index(simplified, values)
        assert low is None or low <= value
        assert high is None or value <= high


def test_views_that_split_and_join_dims_vanish() -> None:
    ranges = ranges_for(((I0, sympy.Integer(24)), (I1, sympy.Integer(8))))
    assert ranges.floor_div(8 * I0 + I1, sympy.Integer(8)) == I0
    assert ranges.modulo(8 * I0 + I1, sympy.Integer(8)) == I1
    assert ranges.simplify(6 * FloorDiv(I0, 6) + Mod(I0, 6)) == I0
    assert ranges.simplify(12 * FloorDiv(I0, 4) + 3 * Mod(I0, 4)) == 3 * I0
    assert ranges.floor_div(FloorDiv(I0, 2), sympy.Integer(3)) == FloorDiv(I0, 6)


def test_symbolic_extents_simplify_too() -> None:
    ranges = ranges_for(((I0, SIZE), (I1, 2 * SIZE)))
    linear = I0 * 2 * SIZE + I1
    assert ranges.floor_div(linear, 2 * SIZE) == I0
    assert ranges.modulo(linear, 2 * SIZE) == I1
