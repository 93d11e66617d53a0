"""Printed index expressions and numbers, evaluated, are what the reference evaluator says they are."""

import math
import random

import pytest
import sympy
from weft_loop_ir import FloorDiv, IndexSpelling, Mod, NumberSpelling, SizeFloat, print_index
from weft_loop_ir import print_number as print_float
from weft_loop_ir.expressions import evaluate_expression

PYTHON = IndexSpelling(
    quotient="natural_quotient({}, {})",
    remainder="natural_remainder({}, {})",
    floor_quotient="({} // {})",
    floor_remainder="({} % {})",
    minimum="min({}, {})",
    maximum="max({}, {})",
)
NUMBER = NumberSpelling(
    index=PYTHON,
    operations={"sqrt": "math.sqrt({})"},
    size="float({})",
    constant=repr,
)

SIZE, INDEX = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("j", integer=True)


def _natural(function):
    def checked(dividend: int, divisor: int) -> int:
        assert dividend >= 0 and divisor > 0
        return function(dividend, divisor)

    return checked


FUNCTIONS = {
    "natural_quotient": _natural(lambda a, b: a // b),
    "natural_remainder": _natural(lambda a, b: a % b),
    "math": math,
}


def _expression(source: random.Random, depth: int) -> sympy.Expr:
    if depth == 0:
        return source.choice([SIZE, INDEX, sympy.Integer(source.randint(-5, 9))])
    left, right = _expression(source, depth - 1), _expression(source, depth - 1)
    divisor = source.choice([SIZE, sympy.Integer(source.randint(1, 7))])
    return source.choice(
        [
            left + right,
            left * right,
            sympy.Min(left, right, SIZE),
            sympy.Max(left, right, INDEX),
            FloorDiv(left, divisor),
            Mod(left, divisor),
            left**2,
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_index_expressions(seed):
    source = random.Random(seed)
    expression = _expression(source, 3)
    code = print_index(expression, PYTHON, {INDEX: "place"})
    for _ in range(8):
        size, place = source.randint(1, 20), source.randint(-30, 30)
        value = eval(code, FUNCTIONS | {"s0": size, "place": place})
        assert value == evaluate_expression(expression, {SIZE: size, INDEX: place}), code


def test_functions_without_a_form():
    with pytest.raises(ValueError, match="no form for the index expression"):
        print_index(sympy.Function("f")(SIZE), PYTHON)


def test_numbers():
    passed = sympy.Symbol("z")
    size = SizeFloat("size", (SIZE * 2 - 1,))
    total = SizeFloat("add", (SizeFloat("input", (passed,)), SizeFloat("constant", (0.1,))))
    number = SizeFloat("truediv", (total, SizeFloat("sqrt", (size,))))
    code = print_float(number, NUMBER, {passed: "given"})
    assert eval(code, FUNCTIONS | {"s0": 7, "given": 0.3}) == number.evaluate(
        {SIZE: 7, passed: 0.3}
    )
