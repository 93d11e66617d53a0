"""Floats of a call: what is computed from them and compared, natively and in Python."""

import builtins
import math

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_guards import (
    ARITHMETIC,
    COMPARISONS,
    ArgumentSource,
    Computation,
    Guard,
    GuardSet,
    IsComputable,
    IsFinite,
    NumbersCompare,
    Quantity,
    Reason,
    Scope,
    SizeExpression,
    SymbolSource,
)

REASON = Reason("model.py", 7, "x * rate")
X, Y = ArgumentSource("x"), ArgumentSource("y")
PLACES = SymbolSource(X, Quantity.VALUE), SymbolSource(Y, Quantity.VALUE)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, math.nan, 5e-324])
NUMBERS = FLOATS | st.integers(-3, 3) | st.just(2**60 + 1)


def arity(operation):
    return ARITHMETIC[operation][1].count("{}")


OPERANDS = st.recursive(
    st.sampled_from(PLACES) | NUMBERS,
    lambda inner: st.sampled_from(sorted(ARITHMETIC.keys() - {"pow"})).flatmap(
        lambda name: st.lists(inner, min_size=arity(name), max_size=arity(name)).map(
            lambda operands: Computation(name, tuple(operands))
        )
    ),
    max_leaves=5,
)


def answer(predicate, x, y):
    """Whether the guard holds; natively and in Python alike."""
    guard_set = GuardSet([Guard(X, predicate, REASON)])
    scope = Scope({"x": x, "y": y}, {}, vars(builtins), {})
    expected = guard_set.evaluate(scope)
    check = guard_set.compile(("x", "y"), ())
    assert check.check((x, y), {}, vars(builtins), None) is expected
    assert (guard_set.explain(scope) is None) is expected
    return expected


@pytest.mark.kept
@settings(max_examples=400, deadline=None)
@given(OPERANDS, OPERANDS, st.sampled_from(sorted(COMPARISONS)), st.booleans(), FLOATS, FLOATS)
def test_native_comparisons_agree_with_python(left, right, comparison, outcome, x, y):
    answer(NumbersCompare(comparison, left, right, outcome), x, y)
    if isinstance(left, Computation):
        answer(IsComputable(left), x, y)


@pytest.mark.parametrize("value", [1, True, "1", None, math.nan, math.inf, -math.inf])
def test_a_float_that_varies_is_finite(value):
    assert answer(IsFinite(), 0.5, 0)
    assert answer(IsFinite(), -0.0, 0)
    assert not answer(IsFinite(), value, 0)


def test_arithmetic_is_pythons_and_keeps_its_order():
    x, y = PLACES
    rounded = Computation("sub", (Computation("add", (x, y)), y))
    guard = NumbersCompare("is", rounded, 0.0, True)
    assert answer(guard, 1e-20, 1.0)
    assert not answer(guard, 1e-20, 0.0)
    assert rounded.name() == "((L['x'] + L['y']) - L['y'])"


def test_what_raises_does_not_hold():
    x, _ = PLACES
    inverse, root = Computation("truediv", (1, x)), Computation("sqrt", (x,))
    power = Computation("pow", (x, 0.5))
    assert not answer(IsComputable(inverse), 0.0, 0)
    assert not answer(IsComputable(root), -1.0, 0)
    assert not answer(IsComputable(power), -1.0, 0)  # complex in Python
    assert answer(IsComputable(root), -0.0, 0)
    assert answer(IsComputable(power), 4.0, 0)
    assert not answer(NumbersCompare("lt", inverse, 3.0, False), 0.0, 0)


def test_not_less_is_not_greater_or_equal():
    guard = NumbersCompare("lt", PLACES[0], 1.0, False)
    assert answer(guard, 2.0, 0)
    assert answer(guard, math.nan, 0)
    assert guard.expected_text() == "not L['x'] < 1.0"


def test_zeros_and_kinds_are_told_apart():
    x, _ = PLACES
    assert answer(NumbersCompare("is", x, -0.0, True), -0.0, 0)
    assert not answer(NumbersCompare("is", x, -0.0, True), 0.0, 0)
    assert not answer(NumbersCompare("is", x, 1, True), 1.0, 0)
    assert Computation("add", (x, 0.0)) != Computation("add", (x, -0.0))
    assert Computation("add", (x, 1)) != Computation("add", (x, 1.0))
    assert len({Computation("neg", (x,)), Computation("neg", (x,))}) == 1


def test_sizes_take_part():
    n = sympy.Symbol("n", integer=True)
    half = SizeExpression(n / 2, ((n, SymbolSource(Y, Quantity.VALUE)),))
    guard = NumbersCompare("le", Computation("mul", (PLACES[0], half)), 1.5, True)
    assert answer(guard, 0.5, 6)
    assert not answer(guard, 0.5, 7)


def test_unknown_arithmetic_is_an_error():
    with pytest.raises(ValueError, match="no arithmetic is called 'log'"):
        Computation("log", (1.0,))
