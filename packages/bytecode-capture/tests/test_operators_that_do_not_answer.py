"""Operators of classes derived from numbers and texts that give ``NotImplemented``: the other answers."""

import operator

import pytest
import torch
from differential import attempt, check


def refused(self, other):
    return NotImplemented


def derived(base):
    names = ("lt", "le", "eq", "ne", "add", "radd", "sub", "mul", "rmul", "pow", "floordiv", "and")
    methods = {f"__{name}__": refused for name in names}
    return type(f"Derived{base.__name__}", (base,), {**methods, "__hash__": base.__hash__})


VALUES = {bool: True, int: 3, float: 2.5, complex: 2j, str: "b", bytes: b"b"}
DERIVED = {base: derived(base) for base in VALUES if base is not bool}
OPERATORS = [
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.add, operator.sub,
    operator.mul, operator.pow, operator.floordiv, operator.truediv, operator.and_, operator.mod,
]  # fmt: skip


@pytest.mark.parametrize("base", DERIVED)
def test_with_plain_values(base):
    kind = DERIVED[base]

    def program(x):
        out = []
        own = kind(VALUES[base])
        for other in VALUES.values():
            for function in OPERATORS:
                if function is operator.mod and base in (str, bytes):
                    continue
                attempt(out, lambda function=function, other=other: function(own, other))
                attempt(out, lambda function=function, other=other: function(other, own))
        return x, out

    check(program, [(torch.ones(2),)], fullgraph=False)


def test_in_containers():
    def program(x):
        three, text = DERIVED[int](3), DERIVED[str]("b")
        found = (
            three in [3],
            {3: "a"}.get(three),
            [2, 3].index(three),
            text in ("a", "b"),
            {text: 1}["b"],
        )
        return x, found, max(three, 4), sorted([three, 1])

    check(program, [(torch.ones(2),)])


def test_with_numbers_that_vary():
    def program(x, number):
        out = []
        for function in (operator.lt, operator.eq, operator.add):
            attempt(out, lambda function=function: function(DERIVED[int](4), number))
            attempt(out, lambda function=function: function(number, DERIVED[int](4)))
        return x * 2, out

    check(program, [(torch.ones(2), n) for n in (3, 4, 5, 6)], fullgraph=False)
