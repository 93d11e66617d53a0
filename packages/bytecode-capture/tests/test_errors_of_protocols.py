"""What CPython says where a method is None, or gives something else; ``math`` of objects."""

import fractions
import math
import operator

import pytest
import torch
from differential import attempt, check


class Nothing:
    """None in the place of methods."""

    __bool__ = __iter__ = __len__ = __reversed__ = __contains__ = __call__ = __add__ = __radd__ = (
        None
    )
    __getitem__ = __setitem__ = __float__ = __index__ = __lt__ = __neg__ = __iadd__ = __next__ = (
        None
    )


class NoHash:
    __hash__ = None
    __eq__ = None
    __str__ = None


class NoLength:
    __len__ = None


class ByPositionAlone:
    __iter__ = None

    def __getitem__(self, position):
        return position


class Iterating:
    def __iter__(self):
        raise TypeError("of its own")


class Wrong:
    def __float__(self):
        return "a"

    def __int__(self):
        return 2.5

    def __index__(self):
        return None

    def __complex__(self):
        return 3


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Real:
    def __float__(self):
        return 0.25


class Raising:
    def __float__(self):
        raise KeyError("no number")


def add_in_place(value):
    value += 1


def assign(value):
    value[0] = 1


def unpack(value):
    _, _ = value


def iterate(value):
    for _ in value:
        pass


OF_NONE = [
    bool, iter, len, reversed, lambda v: 1 in v, lambda v: v(), lambda v: v + 1, lambda v: 1 + v,
    lambda v: v[0], lambda v: [*v], lambda v: (*v,), float, operator.index, lambda v: v < 1, operator.neg,
    next, lambda v: [1][v], lambda v: not v, tuple, sum, sorted, zip, enumerate, range, add_in_place, assign,
    unpack, iterate, lambda v: print(*v), lambda v: v.__iter__, lambda v: math.sqrt(v),
    lambda v: math.gcd(v, 2),
]  # fmt: skip


def test_none_in_the_place_of_a_method():
    def program(x):
        out = []
        for function in OF_NONE:
            attempt(out, lambda function=function: function(Nothing()))
        return x, out

    check(program, [(torch.ones(2),)])


OF_OTHERS = [
    lambda: {NoHash(): 1}, lambda: hash(NoHash()), lambda: NoHash() == 1, lambda: str(NoHash()),
    lambda: bool(NoLength()), lambda: list(ByPositionAlone()), lambda: 1 in ByPositionAlone(),
    lambda: 1 in Iterating(), lambda: unpack(Iterating()), lambda: [*Iterating()], lambda: unpack(3),
    lambda: [*object()], lambda: 1 in object(), lambda: unpack(torch.tensor(1.0)),
    lambda: float(Wrong()), lambda: int(Wrong()), lambda: operator.index(Wrong()), lambda: complex(Wrong()),
]  # fmt: skip


GETTERS = [
    lambda: operator.attrgetter(), lambda: operator.attrgetter(2), lambda: operator.attrgetter("a", 2),
    lambda: operator.itemgetter(), lambda: operator.methodcaller(), lambda: operator.methodcaller(12),
    lambda: operator.itemgetter(a=1), lambda: operator.attrgetter("a", b=1),
    lambda: operator.methodcaller(name="foo"), lambda: operator.attrgetter("name")(),
    lambda: operator.attrgetter("n")(1, 2), lambda: operator.itemgetter(1)(),
    lambda: operator.methodcaller("foo")(), lambda: operator.methodcaller("foo")(1, 2),
    lambda: operator.attrgetter("n")(1, a=2), lambda: operator.attrgetter("real.", "b")(1),
    lambda: operator.attrgetter("real", "imag")(3), lambda: operator.itemgetter(5)([1]),
    lambda: operator.methodcaller("foo", 1)(3), lambda: operator.methodcaller("index", 1)([1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("functions", [OF_OTHERS, GETTERS], ids=["of another class", "getters"])
def test_results(functions):
    def program(x):
        out = []
        for function in functions:
            attempt(out, function)
        return x, out

    check(program, [(torch.ones(2),)])


NUMBERS = [
    lambda: math.prod(iter([1, 2, 3])), lambda: math.prod(n for n in (2, 3)), lambda: math.prod([], start=4),
    lambda: math.prod([2, "a"]), lambda: math.prod(3), lambda: math.prod([1.5, 2, True]),
    lambda: math.prod([Index(2), 2]), lambda: math.gcd(Index(4), Index(6)), lambda: math.lcm(Index(4), 3),
    lambda: math.gcd(Index(4), 2.5), lambda: math.hypot(3, Index(4)), lambda: math.sqrt(Real()),
    lambda: math.atan2(Real(), 2), lambda: math.sqrt(Raising()), lambda: math.sqrt(Wrong()),
    lambda: math.isclose(fractions.Fraction(1, 3), fractions.Fraction(1, 3)),
    lambda: math.factorial(Index(4)),
    lambda: math.comb(Index(4), 2), lambda: math.fsum(n * 0.5 for n in (1, 2)), lambda: math.fsum(3),
    lambda: math.dist(iter([1.0]), (3.0,)), lambda: math.exp(Index(0)), lambda: math.copysign(Real(), -1),
]  # fmt: skip


@pytest.mark.parametrize("function", NUMBERS)
def test_mathematics(function):
    def program(x):
        out = []
        attempt(out, function)
        return x, out

    check(program, [(torch.ones(2),)], fullgraph=False)


def test_products_of_sizes():
    def program(x, y):
        return (
            y * math.prod(x.shape),
            math.prod(n for n in x.shape[1:]),
            math.prod(x.shape, start=0.5),
        )

    calls = [(torch.ones(n, m), torch.ones(2)) for n, m in ((2, 3), (3, 3), (4, 5), (5, 6))]
    check(program, calls)


def test_a_product_of_tensors():
    def program(x):
        return math.prod([x, 2, x + 1]), math.prod((), start=x)

    check(program, [(torch.arange(3.0),)])
