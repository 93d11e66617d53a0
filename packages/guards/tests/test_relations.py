"""Relations between sizes and numbers: checked natively as in Python, simplified without loss."""

import builtins
import dataclasses
import itertools

import pytest
import sympy
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from weft_guards import (
    ArgumentSource,
    Guard,
    GuardSet,
    Quantity,
    Reason,
    Relation,
    Scope,
    ShapeRelation,
    SymbolSource,
    TensorMatches,
    TensorMetadata,
    expression_function,
    simplify_relations,
)
from weft_guards._torch import CeilDiv, FloorDiv, Max, Min, Mod, PythonMod
from weft_guards.relation_program import relation_program

REASON = Reason("model.py", 7, "x.view(-1, 4)")
OTHER = Reason("model.py", 9, "x + y")
X, Y, N = ArgumentSource("x"), ArgumentSource("y"), ArgumentSource("n")
A, B, C = (sympy.Symbol(name, integer=True, positive=True) for name in "abc")
NUMBER = sympy.Symbol("n", integer=True)
PLACES = (
    (A, SymbolSource(X, Quantity.SIZE, 0)),
    (B, SymbolSource(X, Quantity.STRIDE, 0)),
    (C, SymbolSource(Y, Quantity.SIZE, 1)),
    (NUMBER, SymbolSource(N, Quantity.VALUE)),
)


def varying(source, tensor):
    metadata = TensorMetadata.of(tensor)
    free = (None,) * tensor.dim()
    return Guard(
        source, TensorMatches(dataclasses.replace(metadata, size=free, stride=free)), REASON
    )


def guard_set(*conditions):
    tensors = [varying(X, torch.empty(2, 3)), varying(Y, torch.empty(2, 3))]
    relations = [Guard(X, ShapeRelation(condition, PLACES), REASON) for condition in conditions]
    return GuardSet([*tensors, *relations])


def answer(guards, x, y, n):
    check = guards.compile(("x", "y", "n"), ())
    found = check.check((x, y, n), {}, vars(builtins), None)
    scope = Scope({"x": x, "y": y, "n": n}, {}, vars(builtins), {})
    assert guards.evaluate(scope) is found
    assert (guards.explain(scope) is None) is found
    return found


INTEGERS = st.integers(-6, 6)
EXPRESSIONS = st.recursive(
    st.sampled_from([A, B, C, NUMBER]) | INTEGERS.map(sympy.Integer),
    lambda inner: st.one_of(
        st.builds(lambda p, q: p + q, inner, inner),
        st.builds(lambda p, q: p * q, inner, inner),
        st.builds(lambda p, q: p - q, inner, inner),
        st.builds(Min, inner, inner),
        st.builds(Max, inner, inner),
        st.builds(lambda p, q: FloorDiv(p, sympy.Integer(q)), inner, st.integers(1, 5)),
        st.builds(lambda p, q: CeilDiv(p, sympy.Integer(q)), inner, st.integers(1, 5)),
        st.builds(lambda p, q: PythonMod(p, sympy.Integer(q)), inner, st.integers(1, 5)),
        st.builds(lambda p: p**2, inner),
    ),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    st.builds(
        lambda kind, left, right: kind(left, right),
        st.sampled_from([sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]),
        EXPRESSIONS,
        EXPRESSIONS,
    ),
    lambda inner: st.one_of(
        st.builds(sympy.And, inner, inner), st.builds(sympy.Or, inner, inner), inner.map(sympy.Not)
    ),
    max_leaves=3,
)


def division(function, dividend, divisor):
    return dividend if divisor == 0 else function(dividend, divisor)


# By sizes and by what may be 0, of which no relation holds: not below "or", where Python may never divide.
DIVISIONS = st.builds(
    division,
    st.sampled_from([FloorDiv, PythonMod]),
    EXPRESSIONS,
    st.sampled_from([A, B, C, NUMBER, A - 1, A + NUMBER, A * B]),
)
COMPARED = st.sampled_from([sympy.Integer(0), sympy.Integer(1), A, C]) | EXPRESSIONS
KINDS = st.sampled_from([sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge])
CONDITIONS_THAT_DIVIDE = st.builds(
    lambda kind, left, right: kind(left, right), KINDS, DIVISIONS, COMPARED
) | st.builds(
    lambda kind, left, right: kind(left, right),
    KINDS,
    st.sampled_from([A, B, C, NUMBER]),
    COMPARED,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(CONDITIONS | CONDITIONS_THAT_DIVIDE, max_size=3), st.data())
def test_native_relations_agree_with_python(conditions, data):
    guards = guard_set(*conditions)
    for _ in range(3):
        size = [data.draw(st.integers(1, 7)) for _ in range(4)]
        x, y = torch.empty(size[0], size[1]), torch.empty(size[2], size[3])
        if data.draw(st.booleans()):
            x = x.t()
        answer(guards, x, y, data.draw(INTEGERS))


@settings(max_examples=80, deadline=None)
@given(st.lists(CONDITIONS, max_size=6))
@example([A < C, A > C, sympy.Eq(C, 2) & sympy.Eq(A, FloorDiv(A, 2))])
@example([A <= 1, A >= 3, sympy.Eq(A, FloorDiv(A, 2))])
def test_simplified_relations_say_the_same(conditions):
    simplified = simplify_relations([Relation(c, REASON) for c in conditions])
    before = expression_function(sympy.And(*conditions, evaluate=False), (A, B, C, NUMBER))
    after = [expression_function(r.condition, (A, B, C, NUMBER)) for r in simplified]
    for numbers in itertools.product((1, 2, 3, 6), (1, 2, 4), (1, 2, 5), (-2, 0, 3)):
        assert all(f(*numbers) for f in after) is bool(before(*numbers)), numbers


@settings(max_examples=150, deadline=None)
@given(st.lists(CONDITIONS_THAT_DIVIDE, max_size=6))
@example([FloorDiv(4, NUMBER) <= 0])
@example([sympy.Ne(FloorDiv(1, NUMBER), 1), NUMBER < 1])
@example([sympy.Eq(NUMBER, 0), sympy.Eq(PythonMod(A, NUMBER), 0)])
@example([sympy.Eq(NUMBER, 1), sympy.Eq(FloorDiv(A, NUMBER - 1), 0)])
@example([sympy.Eq(PythonMod(A, 2), 0), sympy.Ge(FloorDiv(B, PythonMod(A, 2)), 1)])
@example([sympy.Ge(C, FloorDiv(C, B - 1)), sympy.Ge(B, 1)])
def test_simplified_relations_that_divide_say_the_same(conditions):
    simplified = simplify_relations([Relation(c, REASON) for c in conditions])
    symbols = (A, B, C, NUMBER)
    before = [expression_function(condition, symbols) for condition in conditions]
    after = [expression_function(r.condition, symbols) for r in simplified]
    for numbers in itertools.product((1, 2, 3, 6), (1, 2, 4), (1, 2, 5), (-2, -1, 0, 1, 3)):
        assert all_hold(after, numbers) is all_hold(before, numbers), (numbers, simplified)


def all_hold(functions, numbers):
    """Whether all conditions hold; none does that divides by zero."""
    try:
        held = [bool(function(*numbers)) for function in functions]
    except ZeroDivisionError:
        return False
    return all(held)


def conditions_of(*conditions):
    return {r.condition for r in simplify_relations([Relation(c, REASON) for c in conditions])}


def test_equal_symbols_are_unified_and_the_first_stays():
    kept = conditions_of(A >= 2, B >= 2, sympy.Eq(A, B), sympy.Ne(B, 2), A + B > 3)
    assert kept == {sympy.Eq(B, A, evaluate=False), A >= 3}


def test_bounds_become_one_range():
    assert conditions_of(A >= 2, A > 4, 3 * A <= 100, A < 50) == {A >= 5, A <= 33}


def test_what_ranges_imply_is_dropped():
    assert conditions_of(A >= 4, B >= 2, sympy.Ne(A * B, 1), A * B >= 8) == {A >= 4, B >= 2}


def test_divisors_are_joined():
    kept = conditions_of(sympy.Eq(Mod(A, 4), 0), sympy.Eq(Mod(A, 6), 0), sympy.Eq(Mod(A, 3), 0))
    assert kept == {sympy.Eq(Mod(A, 12), 0, evaluate=False)}


def test_a_range_keeps_the_line_that_needs_it():
    relations = simplify_relations([Relation(A >= 2, REASON), Relation(A > 4, OTHER)])
    assert [relation.reason for relation in relations] == [OTHER]


def test_failures_name_places_and_lines():
    guards = guard_set(sympy.Eq(A, C), NUMBER > 2)
    x, y = torch.empty(3, 4), torch.empty(2, 5)
    failure = guards.explain(Scope({"x": x, "y": y, "n": 7}, {}, {}, {}))
    text = str(failure)
    assert "L['x'].size(0)" in text
    assert "L['y'].size(1) = 5" in text
    assert "model.py:7" in text
    assert "L['n'] = 1" in str(guards.explain(Scope({"x": y, "y": x[:, :2], "n": 1}, {}, {}, {})))


@pytest.mark.parametrize("value", [True, 2.0, "2", None, 2**70])
def test_what_is_no_number_of_the_machine_fails(value):
    guards = guard_set(sympy.Eq(NUMBER, 2))
    x = torch.empty(2, 3)
    check = guards.compile(("x", "y", "n"), ())
    assert check.check((x, x, 2), {}, vars(builtins), None)
    assert not check.check((x, x, value), {}, vars(builtins), None)


def test_overflow_fails():
    guards = guard_set(NUMBER * NUMBER > 0)
    x = torch.empty(2, 3)
    check = guards.compile(("x", "y", "n"), ())
    assert check.check((x, x, 2**31), {}, vars(builtins), None)
    assert not check.check((x, x, 2**33), {}, vars(builtins), None)


def test_relations_of_floats_are_checked_in_python():
    real = sympy.Symbol("f", real=True)
    source = SymbolSource(N, Quantity.VALUE)
    assert relation_program(real > 0.5, {real: (source, 0)}) is None
    guards = GuardSet([Guard(N, ShapeRelation(real > 0.5, ((real, source),)), REASON)])
    check = guards.compile(("n",), ())
    assert check.check((0.75,), {}, vars(builtins), None)
    assert not check.check((0.25,), {}, vars(builtins), None)


def test_tensors_that_no_guard_has_checked_are_read_in_python():
    guards = GuardSet([Guard(X, ShapeRelation(sympy.Eq(A, 3), PLACES), REASON)])
    check = guards.compile(("x",), ())
    assert check.check((torch.empty(3, 1),), {}, vars(builtins), None)
    assert not check.check(([1, 2, 3],), {}, vars(builtins), None)


def test_a_symbol_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no source for b"):
        ShapeRelation(A > B, PLACES[:1])
