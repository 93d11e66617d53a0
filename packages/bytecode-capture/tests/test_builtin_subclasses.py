"""Classes derived from sets, numbers, bytes and tuples, and what their methods and constructors give."""

from __future__ import annotations

import cmath
import collections
import sys

import pytest
import torch
from differential import check

X = torch.ones(2)


class S(set):
    def __init__(self, *a, tag=0):
        super().__init__(*a)
        self.tag = tag


class P(set):
    pass


class FS(frozenset):
    pass


class FK(frozenset):
    def __init__(self, it=(), newarg=None):
        self.newarg = newarg


class L(set):
    def __iter__(self):
        return iter([99])

    def __contains__(self, k):
        return k == 99


class C(complex):
    pass


class B(bytes):
    def __new__(cls, x, n):
        o = super().__new__(cls, x * n)
        o.n = n
        return o


class T(tuple):
    def __init__(self, it=(), newarg=None):
        self.newarg = newarg


class Fl(float):
    def __init__(self, v, newarg=None):
        self.newarg = newarg


def set_with_attributes(s, x):
    s.add(5)
    s.discard(1)
    r = s | {9}
    q = s & {5, 2}
    return sorted(r), type(r).__name__, sorted(q), len(s), 5 in s, s == {2, 3, 5}, x * len(s)


def changed_in_place(s, x):
    s |= {7}
    s -= {2}
    return s, type(s).__name__, x + 1, sorted(s.copy()), type(s.copy()).__name__, bool(s)


def frozen(s, x):
    return (
        frozenset(s) is s,
        frozenset(s),
        s.union([5]),
        hash(s) == hash(frozenset([1, 2, 3])),
        {s: 1}[frozenset([1, 2, 3])],
        x * 2,
        sorted(s),
    )


def constructed(x):
    a = FS([1, 2])
    b = FK([3, 1], newarg=4)
    c = C(1, 2)
    d = B(b"ab", 2)
    e = T([1, 2], newarg=3)
    g = Fl(2.5, newarg=x)
    return (
        a,
        b,
        b.newarg,
        c,
        c * 2,
        abs(C(3, 4)),
        d,
        d.n,
        d + b"x",
        len(d),
        d[0],
        e,
        e.newarg,
        g,
        g.newarg * 1,
        g + 1,
        a | b,
        type(a | b).__name__,
        type(c * 2).__name__,
        isinstance(c, complex),
        c == 1 + 2j,
        hash(c) == hash(1 + 2j),
        c.real,
        c.conjugate(),
        type(c.conjugate()).__name__,
        repr(c),
        str(d),
        a,
        list(d),
        d.hex(),
        d.decode(),
    )


def reads_by_itself(s, x):
    return list(s), 99 in s, 1 in s, set(s), len(s), x, sorted(s | {4})


def refused_constructors(x):
    out = []
    for g in (
        lambda: int.__new__(bool, 0),
        lambda: int.__new__(str),
        lambda: tuple.__new__(list),
        lambda: FS(1),
        lambda: FS([1], k=2),
        lambda: T(1, 2, 3),
        lambda: FS([1], [2]),
        lambda: object.__new__(Fl),
        lambda: object.__new__(P),
        lambda: tuple.__new__(tuple, k=1),
        lambda: set.__new__(dict),
        lambda: P([1], k=3),
        lambda: C("1+2j"),
        lambda: C("x"),
        lambda: dict.__new__(list),
        lambda: float.__new__(int),
    ):
        try:
            out.append(g())
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out, x * 2


def iterated(s, x):
    it = iter(s)
    a = next(it)
    return a, list(it), s.pop(), len(s), x


def complex_functions(x):

    return (
        cmath.sqrt(-1),
        cmath.phase(1j),
        cmath.polar(1 + 1j),
        cmath.isclose(1j, 1j),
        cmath.rect(1, 2),
        cmath.exp(2j),
        cmath.isnan(complex("nan")),
        x * cmath.pi,
    )


def printed_sets(s, x):
    return repr(s), str(s), f"{s}", x * 2, s


def class_methods_and_operators(x):
    class F(float):
        pass

    class Whole(int):
        def __new__(cls, v):
            o = super().__new__(cls, v)
            o.k = 1
            return o

    return (
        F.fromhex("0x1p3") + 0,
        type(F.fromhex("0x1p3")).__name__,
        Whole.from_bytes(b"\x02", "big").k,
        bool.from_bytes(b"\x02", "big"),
        complex.__lt__(1j, None) is NotImplemented,
        int.__eq__(1, "a") is NotImplemented,
        float.__add__(1.5, 2),
        str.__lt__("a", "b"),
        int.__radd__(1, 2),
        x,
    )


class SS(set):
    pass


class LS(list):
    pass


class DS(dict):
    pass


def printed(a, b, c, x):
    return repr(a), repr(b), repr(c), str(a), f"{b}", x


def default_dicts_and_views(x):
    made = collections.defaultdict(list, a=[1])
    text = repr(made)
    made.default_factory = int
    made["z"] += 1
    made.default_factory = None
    try:
        made["nope"]
    except KeyError as error:
        text += repr(error)
    ordered = collections.OrderedDict(a=1)
    views = {1: 2}.keys(), {1: 2}.values(), {1: 2}.items(), ordered.keys()
    return text, made, list(map(repr, views)), repr(collections.defaultdict(None, {1: 2})), x


CASES = [
    (default_dicts_and_views, [(X,)]),
    (
        set_with_attributes,
        [(S([1, 2, 3]), X), (S([1, 2, 3]), X), (P([1, 2, 3]), X), (S([1, 2, 3, 8]), X)],
    ),
    (changed_in_place, [(P([1, 2]), X), (S([1, 2]), X)]),
    (frozen, [(FS([1, 2, 3]), X), (FS([1, 2, 3]), X), (FK([1, 2, 3]), X)]),
    (constructed, [(X,)]),
    (reads_by_itself, [(L([1, 2]), X)]),
    (refused_constructors, [(X,)]),
    (iterated, [(P([3]), X), (P([3, 4]), X)]),
    (complex_functions, [(X,)]),
    (printed_sets, [({1, 2, 3}, X), ({1}, X), (set(), X), (frozenset("a"), X), ({5, 1, 2**40}, X)]),
    (class_methods_and_operators, [(X,)]),
    (printed, [(SS([1]), LS([1, "a"]), DS(a=1), X)]),
]


@pytest.mark.parametrize(("program", "calls"), CASES)
def test_program(program, calls):
    check(program, calls, fullgraph=True)


def integer_by_trunc(value, x):
    try:
        return int(value), x + 1
    except TypeError as error:
        return str(error), x + 1


class Truncated:
    def __trunc__(self):
        return 5


@pytest.mark.filterwarnings("ignore:The delegation of int")
def test_integers_by_trunc():
    check(integer_by_trunc, [(Truncated(), X)], fullgraph=sys.version_info >= (3, 14))
