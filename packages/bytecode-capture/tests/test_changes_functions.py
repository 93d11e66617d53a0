"""What changes in functions, closures, globals and other modules between two calls."""

import builtins
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from changes import check, collected, other

case, CASES = collected()

G = 1.0


@case
def other_global():
    def f(x):
        return other.helper(x)

    return f, lambda: setattr(other, "scale", other.scale + 1)


@case
def other_global_fn():
    def f(x):
        return other.helper(x)

    def change():
        other.helper = lambda x: x - 7

    return f, change


@case
def own_global():
    def f(x):
        return x * G

    def change():
        global G
        G = G + 5

    return f, change


@case
def closure_cell():
    k = 1.0

    def f(x):
        return x * k

    def change():
        nonlocal k
        k = k + 3

    return f, change


@case
def closure_of_closure():
    k = [1.0]

    def g(x):
        return x + k[0]

    def f(x):
        return g(x)

    def change():
        k[0] += 1

    return f, change


@case
def defaults():
    def g(x, a=2.0):
        return x * a

    def f(x):
        return g(x)

    def change():
        g.__defaults__ = (5.0,)

    return f, change


@case
def kwdefaults():
    def g(x, *, a=2.0):
        return x * a

    def f(x):
        return g(x)

    def change():
        g.__kwdefaults__ = {"a": 9.0}

    return f, change


@case
def kwdefaults_inplace():
    def g(x, *, a=2.0):
        return x * a

    def f(x):
        return g(x)

    def change():
        g.__kwdefaults__["a"] = 9.0

    return f, change


@case
def fn_code():
    def g(x):
        return x * 2

    def f(x):
        return g(x)

    def change():
        g.__code__ = (lambda x: x * 3).__code__

    return f, change


@case
def own_defaults():
    def f(x, a=2.0):
        return x * a

    def change():
        f.__defaults__ = (4.0,)

    return f, change


@case
def functional_patch():
    def f(x):
        return F.relu(x - 3)

    old = F.relu

    def change():
        F.relu = lambda x: x * 100

    def undo():
        F.relu = old

    return f, change, undo


@case
def torch_patch():
    def f(x):
        return torch.relu(x - 3)

    old = torch.relu

    def change():
        torch.relu = lambda x: x * 100

    def undo():
        torch.relu = old

    return f, change, undo


@case
def partial_args():
    def g(x, a):
        return x * a

    p = [functools.partial(g, a=2.0)]

    def f(x):
        return p[0](x)

    def change():
        p[0] = functools.partial(g, a=5.0)

    return f, change


@case
def partial_kw_mutated():
    def g(x, a):
        return x * a

    p = functools.partial(g, a=2.0)

    def f(x):
        return p(x)

    def change():
        p.keywords["a"] = 7.0

    return f, change


@case
def bound_method_stored():
    class C:
        def __init__(self, k):
            self.k = k

        def m(self, x):
            return x * self.k

    h = [C(2.0).m]

    def f(x):
        return h[0](x)

    def change():
        h[0] = C(5.0).m

    return f, change


@case
def attribute_of_a_bound_self():
    class C:
        def __init__(self, k):
            self.k = k

        def m(self, x):
            return x * self.k

    c = C(2.0)
    h = [c.m]

    def f(x):
        return h[0](x)

    def change():
        c.k = 9.0

    return f, change


@case
def math_patch():
    def f(x):
        return x * math.sqrt(4.0)

    old = math.sqrt

    def change():
        math.sqrt = lambda v: 10.0

    def undo():
        math.sqrt = old

    return f, change, undo


@case
def builtin_shadow():
    def f(x):
        return x * len([1, 2])

    def change():
        globals()["len"] = lambda v: 9

    def undo():
        del globals()["len"]

    return f, change, undo


@case
def builtins_patch():
    def f(x):
        return x * abs(-2)

    old = builtins.abs

    def change():
        builtins.abs = lambda v: 9

    def undo():
        builtins.abs = old

    return f, change, undo


@case
def generator_fn():
    k = [2]

    def g():
        yield from range(k[0])

    def f(x):
        for i in g():
            x = x + i + 1
        return x

    def change():
        k[0] = 4

    return f, change


@case
def decorator_wrapped():
    def deco(g):
        @functools.wraps(g)
        def w(*a):
            return w.scale * g(*a)

        w.scale = 2.0
        return w

    @deco
    def g(x):
        return x

    def f(x):
        return g(x)

    def change():
        g.scale = 6.0

    return f, change


@case
def wrapped_attr():
    def deco(g):
        @functools.wraps(g)
        def w(*a):
            return 2 * w.__wrapped__(*a)

        return w

    @deco
    def g(x):
        return x

    def f(x):
        return g(x)

    def change():
        g.__wrapped__ = lambda x: x * 50

    return f, change


@case
def lru_cached():
    k = [1]

    @functools.lru_cache
    def g(n):
        return n * 2

    def f(x):
        return x * g(k[0])

    def change():
        k[0] = 5

    return f, change


@case
def import_inside():
    def f(x):
        import weft_tests_other_module as other_mod

        return x * other_mod.scale

    return f, lambda: setattr(other, "scale", other.scale + 1)


@case
def from_import_inside():
    def f(x):
        from weft_tests_other_module import scale

        return x * scale

    return f, lambda: setattr(other, "scale", other.scale + 1)


@case
def del_global():
    globals()["ZG"] = 3.0

    def f(x):
        try:
            return x * ZG
        except NameError:
            return x * 100

    def change():
        del globals()["ZG"]

    return f, change


@case
def singledispatch():
    @functools.singledispatch
    def g(v, x):
        return x

    h = [3]

    def f(x):
        return g(h[0], x)

    def change():
        g.register(int)(lambda v, x: x * 9)

    return f, change


@case
def fn_name():
    def g():
        pass

    def f(x):
        return x * len(g.__name__)

    def change():
        g.__name__ = "longer"

    return f, change


@case
def annotations_():
    def g(a: int):
        pass

    def f(x):
        return x * len(g.__annotations__)

    def change():
        g.__annotations__["b"] = int

    return f, change


@case
def fn_dict():
    def g():
        pass

    def f(x):
        return x * getattr(g, "q", 2)

    def change():
        g.q = 9

    return f, change


@case
def globals_read():
    def f(x):
        return x * (2 if "ZQ" in globals() else 3)

    def change():
        globals()["ZQ"] = 1

    return f, change


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
