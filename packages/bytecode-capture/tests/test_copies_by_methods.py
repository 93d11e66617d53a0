"""``copy.copy`` and ``copy.deepcopy`` of objects whose classes say how they are copied."""

from __future__ import annotations

import copy

import pytest
import torch
from differential import check

X = torch.ones(2)


class Cfg:
    def __init__(self, x=1):
        self.a = [1, {"t": torch.ones(2)}]
        self.me = self
        self.x = x

    def __copy__(self):
        c = Cfg.__new__(Cfg)
        c.__dict__.update(self.__dict__)
        c.copied = True
        return c

    def __deepcopy__(self, memo):
        c = Cfg.__new__(Cfg)
        memo[id(self)] = c
        c.a = copy.deepcopy(self.a, memo)
        c.me = copy.deepcopy(self.me, memo)
        c.n = len(c.a)
        return c


def by_copy_and_deepcopy(x):
    c = Cfg()
    s = copy.copy(c)
    d = copy.deepcopy(c)
    d.a[1]["t"].add_(1)
    e = copy.deepcopy({"p": c, "q": c, "l": c.a})
    return (
        s.a is c.a,
        s.copied,
        d.me is d,
        d.a[1]["t"],
        c.a[1]["t"],
        d.n,
        e["p"] is e["q"],
        e["p"].a is e["l"],
        x,
    )


class St:
    def __init__(self, v):
        self.v = v
        self.cache = [v]

    def __getstate__(self):
        return {"v": self.v}

    def __setstate__(self, s):
        self.v = s["v"]
        self.cache = "new"


class Red:
    def __init__(self, v):
        self.v = v

    def __reduce__(self):
        return Red, (self.v,), None


class RedEx:
    def __init__(self, v):
        self.v = v

    def __reduce_ex__(self, p):
        return RedEx, (self.v,), {"p": p}


class NA:
    def __new__(cls, a, b=2):
        o = object.__new__(cls)
        o.a = a
        o.b = b
        return o

    def __getnewargs__(self):
        return (self.a,)


class NAX:
    def __new__(cls, *, k):
        o = object.__new__(cls)
        o.k = k
        return o

    def __getnewargs_ex__(self):
        return (), {"k": self.k}


class Sl:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = [1]


class Sl2(Sl):
    __slots__ = ("c",)


class SlD(Sl):
    pass


class Lst(list):
    pass


class LstG(list):
    def __getstate__(self):
        return {"g": len(self)}


class DD(dict):
    def __setstate__(self, s):
        self.st = s

    def __getstate__(self):
        return (1, 2)


class SetS(set):
    pass


class GA:
    def __init__(self):
        self.v = [1]
        self.log = 0

    def __getattr__(self, n):
        if n.startswith("__"):
            raise AttributeError(n)
        return n


class Str:
    def __reduce__(self):
        return "name"


class L4:
    def __init__(self):
        self.items = []

    def append(self, v):
        self.items.append(v)

    def extend(self, v):
        self.items.extend(v)

    def __setitem__(self, k, v):
        self.items.append((k, v))

    def __reduce__(self):
        return L4, (), None, iter([1, 2]), iter([("a", [3])])


def state(o):
    if isinstance(o, (list, tuple)):
        return [state(i) for i in o] + ([sorted(vars(o).items())] if hasattr(o, "__dict__") else [])
    return [
        (n, getattr(o, n))
        for n in ("v", "cache", "p", "a", "b", "k", "c", "st", "w", "g")
        if hasattr(o, n) and not isinstance(o, GA)
    ]


def by_each_protocol(x):
    out = []
    a = [
        St([x]),
        Red([1]),
        RedEx([2]),
        NA([3]),
        NAX(k=[4]),
        Sl(),
        Sl2(),
        SlD(),
        Lst([[1]]),
        LstG([[2]]),
        DD(a=[1]),
        SetS([1]),
        L4(),
        Str(),
        GA(),
    ]
    a[7].w = [9]
    a[8].w = [5]
    a[11].w = 3
    a[6].c = [8]
    for o in a:
        for f in (copy.copy, copy.deepcopy):
            c = f(o)
            out.append((type(c).__name__, c is o, state(c)))
            for n in ("v", "a", "k", "c", "w"):
                if not isinstance(o, GA) and hasattr(o, n) and hasattr(c, n):
                    out.append((n, getattr(c, n) is getattr(o, n)))
    return out


def copy_of_an_argument(o, x):
    a = copy.copy(o)
    b = copy.deepcopy(o)
    b.v.append(x)
    return a.v is o.v, len(o.v), len(b.v), b, x


class Tree:
    def __init__(self):
        self.kids = []
        self.parent = None
        self.w = torch.zeros(2)

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        new = type(self)()
        memo[id(self)] = new
        new.kids = [copy.deepcopy(k, memo) for k in self.kids]
        new.parent = copy.deepcopy(self.parent, memo)
        new.w = self.w + 1
        return new


def tree_with_parents(x):
    r = Tree()
    c = Tree()
    r.kids.append(c)
    c.parent = r
    n = copy.deepcopy(r)
    return n.kids[0].parent is n, n.kids[0] is c, n.w * x


def reduced(x):
    g = list(filter(None, [0, 1, 2])), list(filter(lambda v: v > 1, [1, 2]))
    from _thread import RLock

    lock = RLock()
    with lock:
        y = x + 1
    try:
        next(filter(range(6), range(6)))
    except TypeError as e:
        m = str(e)
    return g, y, m, object().__reduce_ex__(2)[0].__name__, St(1).__reduce_ex__(2)[2]


class P:
    def __init__(self):
        self.v = [1]

    def __deepcopy__(self, memo):
        n = P()
        n.v = copy.deepcopy(self.v, memo)
        return n


@pytest.mark.parametrize(
    "program", [by_copy_and_deepcopy, by_each_protocol, tree_with_parents, reduced]
)
def test_program(program):
    check(program, [(X,)], fullgraph=True)


def test_an_object_of_the_caller():
    check(copy_of_an_argument, [(P(), X), (P(), X)], fullgraph=True)
