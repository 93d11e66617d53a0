"""Views of dicts beside each other, and class methods of containers called on instances."""

import pytest
import torch
from differential import check

X = torch.arange(3.0)


class Refuses:
    def __eq__(self, other):
        raise RuntimeError("compared")


COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


@pytest.mark.parametrize("operator", COMPARISONS)
def test_views_are_compared_by_looking_up(operator):
    names: dict = {}
    exec(f"def compared(left, right): return left {operator} right", names)
    compared = names["compared"]

    def program(x):
        a, b = {1: [1], 2: [2]}, {1: [1]}
        others = [b.items(), a.items(), {(1, 2)}, a.keys(), a.values(), [1]]
        found = []
        for left in (a.items(), a.keys()):
            for right in others:
                try:
                    found.append(compared(left, right))
                except TypeError as error:
                    found.append(str(error))
        try:
            found.append(compared({1: Refuses()}.items(), {1: Refuses()}.items()))
        except RuntimeError as error:
            found.append(str(error))
        return x + 1, found, compared({1, 2}, a.keys())

    check(program, [(X,)])


def keyed(x):
    class Own(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, (key, value))

    found = Own.fromkeys("ab", 1)
    return x + 1, {}.fromkeys("abc"), {1: 2}.fromkeys([3], 4), dict(found), type(found) is Own


def with_a_keyword(x):
    class Made(list):
        def __new__(cls, values, name=None):
            self = super().__new__(cls, values)
            self.name = name
            return self

    made = Made([1, 2], name=3)
    return x + 1, list(made), made.name


@pytest.mark.parametrize("function", [keyed, with_a_keyword])
def test_what_makes_containers(function):
    check(function, [(X,), (X,)])
