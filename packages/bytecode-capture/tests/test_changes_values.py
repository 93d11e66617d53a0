"""What changes in containers and objects between two calls."""

import collections
import dataclasses
import enum
import math
import types
import weakref

import pytest
import torch
from changes import check, collected

case, CASES = collected()


@case
def dict_value():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        return x * d["a"]

    return f, lambda: d.update(a=3.0)


@case
def dict_order():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        for i, (_k, v) in enumerate(d.items()):
            x = x * (i + 1) + v
        return x

    def change():
        a = d.pop("a")
        d["a"] = a

    return f, change


@case
def dict_len():
    d = {"a": 1.0}

    def f(x):
        return x * len(d)

    return f, lambda: d.update(q=1)


@case
def dict_get_missing():
    d = {}

    def f(x):
        return x * d.get("k", 2.0)

    return f, lambda: d.update(k=4.0)


@case
def dict_in():
    d = {}

    def f(x):
        return x * 2 if "k" in d else x

    return f, lambda: d.update(k=4.0)


@case
def list_len():
    items = [1.0, 2.0]

    def f(x):
        for v in items:
            x = x + v
        return x

    return f, lambda: items.append(5.0)


@case
def list_item():
    items = [1.0, 2.0]

    def f(x):
        return x * items[1]

    def change():
        items[1] = 9.0

    return f, change


@case
def list_neg():
    items = [1.0, 2.0]

    def f(x):
        return x * items[-1]

    return f, lambda: items.append(7.0)


@case
def list_slice():
    items = [1.0, 2.0, 3.0]

    def f(x):
        return x * sum(items[1:])

    return f, lambda: items.append(7.0)


@case
def set_content():
    s = {1, 2}

    def f(x):
        return x * sum(s)

    return f, lambda: s.add(9)


@case
def deque_content():
    s = collections.deque([1, 2])

    def f(x):
        return x * sum(s)

    return f, lambda: s.append(9)


@case
def enum_value():
    class E(enum.Enum):
        A = 1
        B = 2

    h = [E.A]

    def f(x):
        return x * h[0].value

    def change():
        h[0] = E.B

    return f, change


@case
def dataclass_field():
    @dataclasses.dataclass
    class D:
        a: float = 1.0

    d = D()

    def f(x):
        return x * d.a

    return f, lambda: setattr(d, "a", 3.0)


@case
def slots():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 1.0

    def f(x):
        return x * s.a

    return f, lambda: setattr(s, "a", 3.0)


@case
def counter_obj():
    c = collections.Counter(a=2)

    def f(x):
        return x * c["a"]

    return f, lambda: c.update(a=5)


@case
def default_dict():
    c = collections.defaultdict(lambda: 3.0)

    def f(x):
        return x * (c.get("a", 1.0))

    return f, lambda: c["a"]


@case
def default_factory():
    c = collections.defaultdict(lambda: 3.0)

    def f(x):
        r = x * c["a"]
        del c["a"]
        return r

    def change():
        c.default_factory = lambda: 8.0

    return f, change


@case
def namespace():
    n = types.SimpleNamespace(a=2.0)

    def f(x):
        return x * n.a

    return f, lambda: setattr(n, "a", 5.0)


@case
def dtype_holder():
    h = [torch.float32]

    def f(x):
        return x.to(h[0])

    def change():
        h[0] = torch.float64

    return f, change


@case
def str_flag():
    h = ["mean"]

    def f(x):
        return getattr(torch, h[0])(x)

    def change():
        h[0] = "sum"

    return f, change


@case
def nested_objs():
    class N:
        pass

    a = N()
    a.b = N()
    a.b.c = [{"k": 1.0}]

    def f(x):
        return x * a.b.c[0]["k"]

    def change():
        a.b.c[0]["k"] = 4.0

    return f, change


@case
def aliasing_list():
    items = [1.0]
    p = [items, items]

    def f(x):
        p[0].append(2.0)
        r = x * sum(p[1])
        p[0].pop()
        return r

    def change():
        p[1] = [1.0]

    return f, change


@case
def is_same():
    a = []
    p = [a, a]

    def f(x):
        return x * 2 if p[0] is p[1] else x * 3

    def change():
        p[1] = []

    return f, change


@case
def od_move():
    d = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        for i, v in enumerate(d.values()):
            x = x * (i + 1) + v
        return x

    return f, lambda: d.move_to_end("a")


@case
def chainmap():
    a = {"k": 1.0}
    m = collections.ChainMap({}, a)

    def f(x):
        return x * m["k"]

    def change():
        m.maps[0]["k"] = 6.0

    return f, change


@case
def weakref_dead():
    class A:
        pass

    h = [A()]
    w = weakref.ref(h[0])

    def f(x):
        return x * 2 if w() is None else x * 3

    def change():
        h.clear()

    return f, change


@case
def namedtuple_other_class():
    P = collections.namedtuple("P", "a b")
    Q = collections.namedtuple("Q", "b a")
    h = [P(1.0, 2.0)]

    def f(x):
        return x * h[0].b

    def change():
        h[0] = Q(1.0, 2.0)

    return f, change


@case
def int_to_bool():
    h = [1]

    def f(x):
        return x * 2 if h[0] is True else x * 3

    def change():
        h[0] = True

    return f, change


@case
def neg_zero():
    h = [0.0]

    def f(x):
        return x * math.copysign(1.0, h[0])

    def change():
        h[0] = -0.0

    return f, change


@case
def key_error():
    d = {"a": 2.0}

    def f(x):
        try:
            return x * d["a"]
        except KeyError:
            return x * 50

    def change():
        del d["a"]

    return f, change


@case
def index_error():
    items = [1, 2]

    def f(x):
        try:
            return x * items[2]
        except IndexError:
            return x * 50

    def change():
        items.append(7)

    return f, change


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
