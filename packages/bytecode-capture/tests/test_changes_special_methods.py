"""What changes in special methods, attribute hooks and checks of classes between two calls."""

import copy

import pytest
import torch
from changes import check, collected
from weft_bytecode_capture import compile_frames

case, CASES = collected()


@case
def getattr_hook_added():
    class A:
        def __getattr__(self, n):
            return 2.0

    o = A()

    def f(x):
        return x * o.zz

    def change():
        A.__getattr__ = lambda s, n: 3.0

    return f, change


@case
def getattr_then_set():
    class A:
        def __getattr__(self, n):
            return 2.0

    o = A()

    def f(x):
        return x * o.zz

    return f, lambda: setattr(o, "zz", 4.0)


@case
def hasattr_later():
    class A:
        pass

    o = A()

    def f(x):
        return x * o.zz if hasattr(o, "zz") else x

    return f, lambda: setattr(o, "zz", 4.0)


@case
def getattr_default():
    class A:
        pass

    o = A()

    def f(x):
        return x * getattr(o, "zz", 2.0)

    return f, lambda: setattr(o, "zz", 4.0)


@case
def callable_obj():
    class C:
        def __call__(self, x):
            return x * 2

    c = C()

    def f(x):
        return c(x)

    def change():
        C.__call__ = lambda s, x: x * 3

    return f, change


@case
def dunder_len():
    class C:
        def __init__(self):
            self.n = 2

        def __len__(self):
            return self.n

    c = C()

    def f(x):
        return x * len(c)

    return f, lambda: setattr(c, "n", 5)


@case
def dunder_bool():
    class C:
        def __init__(self):
            self.n = False

        def __bool__(self):
            return self.n

    c = C()

    def f(x):
        return x * 2 if c else x * 3

    return f, lambda: setattr(c, "n", True)


@case
def dunder_eq():
    class C:
        n = 1

        def __eq__(self, o):
            return self.n == o

    c = C()

    def f(x):
        return x * 2 if c == 1 else x * 3

    return f, lambda: setattr(c, "n", 5)


@case
def dunder_added():
    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if c else x * 3

    def change():
        C.__bool__ = lambda s: False

    return f, change


@case
def dunder_len_added():
    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if c else x * 3

    def change():
        C.__len__ = lambda s: 0

    return f, change


@case
def setattr_hook_replaced():
    class A:
        def __init__(self):
            self.k = 2.0

        def __setattr__(self, n, v):
            object.__setattr__(self, n, v)

    def f(x):
        return x * A().k

    def change():
        A.__setattr__ = lambda s, n, v: object.__setattr__(s, n, v * 3)

    return f, change


@case
def getattribute_added():
    class A:
        k = 2.0

    a = A()

    def f(x):
        return x * a.k

    def change():
        A.__getattribute__ = lambda s, n: 11.0

    return f, change


@case
def iter_patched():
    class A:
        def __iter__(self):
            return iter([1, 2])

    a = A()

    def f(x):
        for v in a:
            x = x * v + 1
        return x

    def change():
        A.__iter__ = lambda s: iter([5])

    return f, change


@case
def list_subclass_patched_len():
    class L(list):
        pass

    items = L([1.0, 2.0])

    def f(x):
        return x * len(items)

    def change():
        L.__len__ = lambda s: 9

    return f, change


@case
def list_subclass_patched_iter():
    class L(list):
        pass

    items = L([1.0, 2.0])

    def f(x):
        for v in items:
            x = x + v
        return x

    def change():
        L.__iter__ = lambda s: iter([9.0])

    return f, change


@case
def dict_subclass_patched_get():
    class L(dict):
        pass

    items = L(a=2.0)

    def f(x):
        return x * items["a"]

    def change():
        L.__getitem__ = lambda s, k: 9.0

    return f, change


@case
def dict_subclass_patched_items():
    class L(dict):
        pass

    items = L(a=2.0)

    def f(x):
        for _k, v in items.items():
            x = x * v
        return x

    def change():
        L.items = lambda s: [("b", 5.0)]

    return f, change


@case
def missing_patched():
    class D(dict):
        def __missing__(self, k):
            return 4.0

    d = D()

    def f(x):
        return x * d["q"]

    def change():
        D.__missing__ = lambda s, k: 9.0

    return f, change


@case
def rop_added():
    class V:
        pass

    v = V()

    def f(x):
        try:
            return x * (v + 3)
        except TypeError:
            return x + 1

    def change():
        V.__add__ = lambda s, o: 5

    return f, change


@case
def eq_added():
    class V:
        pass

    a, b = V(), V()

    def f(x):
        return x * 2 if a == b else x * 3

    def change():
        V.__eq__ = lambda s, o: True

    return f, change


@case
def hash_contains():
    class V:
        pass

    a = V()
    items = [V()]

    def f(x):
        return x * 2 if a in items else x * 3

    def change():
        V.__eq__ = lambda s, o: True

    return f, change


@case
def contains_added():
    class V:
        def __iter__(self):
            return iter([1])

    v = V()

    def f(x):
        return x * 2 if 5 in v else x * 3

    def change():
        V.__contains__ = lambda s, o: True

    return f, change


@case
def str_added():
    class V:
        pass

    v = V()

    def f(x):
        return x * len(str(v)) * 0 + x * (2 if str(v) == "q" else 3)

    def change():
        V.__str__ = lambda s: "q"

    return f, change


@case
def index_dunder():
    class V:
        n = 1

        def __index__(self):
            return self.n

    v = V()

    def f(x):
        return x * [1.0, 5.0, 9.0][v]

    def change():
        V.n = 2

    return f, change


@case
def exit_swallows():
    class C:
        def __enter__(self):
            return 1

        def __exit__(self, *a):
            return True

    c = C()

    def f(x):
        with c:
            raise ValueError
        return x * 2

    def change():
        C.__exit__ = lambda s, *a: False

    return f, change


@case
def callable_check():
    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if callable(c) else x * 3

    def change():
        C.__call__ = lambda s: 1

    return f, change


@case
def protocol_check():
    from typing import Protocol, runtime_checkable

    @runtime_checkable
    class P(Protocol):
        def go(self): ...

    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if isinstance(c, P) else x * 3

    def change():
        C.go = lambda s: 1

    return f, change


@case
def collections_abc_check():
    from collections.abc import Iterable

    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if isinstance(c, Iterable) else x * 3

    def change():
        C.__iter__ = lambda s: iter([])

    return f, change


@case
def instancecheck_meta():
    class M(type):
        ans = True

        def __instancecheck__(cls, o):
            return cls.ans

    class C(metaclass=M):
        pass

    def f(x):
        return x * 2 if isinstance(3, C) else x * 3

    def change():
        M.ans = False

    return f, change


@case
def hasattr_class():
    class C:
        pass

    def f(x):
        return x * 2 if hasattr(C, "zz") else x * 3

    return f, lambda: setattr(C, "zz", 1)


@case
def manager_of_an_instance():
    class A:
        def __enter__(self):
            return 2.0

        def __exit__(self, *found):
            return True

    o = A()

    def f(x):
        with o as k:
            raise ValueError
        return x * k

    def change():
        o.__enter__, o.__exit__ = lambda: 3.0, lambda *found: False

    return f, change


@case
def manager_of_a_class():
    class A:
        def __enter__(self):
            return 2.0

        def __exit__(self, *found):
            pass

    o = A()

    def f(x):
        with o as k:
            return x * k

    return f, lambda: setattr(A, "__enter__", lambda self: 3.0)


def outcome(function, *values):
    try:
        return function(*values)
    except (TypeError, AttributeError) as error:
        return str(error)


COMES_AND_GOES = {
    "__getattr__": (lambda o: hasattr(o, "zz"), lambda o, name: 5),
    "__call__": (lambda o: callable(o), lambda o: 5),
    "__contains__": (lambda o: outcome(lambda: 1 in o), lambda o, value: True),
    "__index__": (lambda o: outcome(lambda: [1, 2][o]), lambda o: 1),
    "__float__": (lambda o: outcome(float, o), lambda o: 5.0),
    "__neg__": (lambda o: outcome(lambda: -o), lambda o: 5),
    "__setitem__": (lambda o: outcome(lambda: o.__setitem__(0, 1)), lambda o, key, value: None),
    "__iter__": (lambda o: outcome(lambda: [*o]), lambda o: iter([1])),
    "__getitem__": (lambda o: outcome(lambda: list(reversed(o))), lambda o, key: key),
    "__reversed__": (lambda o: outcome(lambda: list(reversed(o))), lambda o: iter([1])),
    "__init__": (lambda o: len(vars(type(o)())), lambda o: setattr(o, "a", 1)),
    "__class_getitem__": (lambda o: outcome(lambda: type(o)[int]), classmethod(lambda c, key: 3)),
    "__copy__": (lambda o: isinstance(copy.copy(o), int), lambda o: 5),
    "__hash__": (lambda o: outcome(lambda: len({o: 1})), None),
}


@pytest.mark.parametrize("name", COMES_AND_GOES)
def test_a_special_method_comes_and_goes(name):
    question, method = COMES_AND_GOES[name]

    class A:
        pass

    a = A()

    def f(x):
        return x + 1, question(a)

    compiled = compile_frames(f, lambda graph_module, inputs: graph_module.forward)
    for is_there in (True, False, True, False):
        if is_there:
            setattr(A, name, method)
        else:
            delattr(A, name)
        assert compiled(torch.ones(1))[1] == f(torch.ones(1))[1], is_there


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
