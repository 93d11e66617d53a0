"""What changes in classes between two calls: attributes, methods, descriptors, bases."""

import abc

import pytest
import torch
from changes import check, collected

case, CASES = collected()


@case
def class_attr():
    class C:
        k = 2.0

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(C, "k", 5.0)


@case
def class_attr_shadow():
    class C:
        k = 2.0

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(o, "k", 5.0)


@case
def base_class_attr():
    class B:
        k = 2.0

    class C(B):
        pass

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(B, "k", 5.0)


@case
def base_class_shadow():
    class B:
        k = 2.0

    class C(B):
        pass

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(C, "k", 5.0)


@case
def method_patch():
    class C:
        def m(self, x):
            return x * 2

    o = C()

    def f(x):
        return o.m(x)

    def change():
        C.m = lambda self, x: x * 3

    return f, change


@case
def method_patch_instance():
    class C:
        def m(self, x):
            return x * 2

    o = C()

    def f(x):
        return o.m(x)

    def change():
        o.m = lambda x: x * 3

    return f, change


@case
def method_patch_base_override():
    class B:
        def m(self, x):
            return x * 2

    class C(B):
        pass

    o = C()

    def f(x):
        return o.m(x)

    def change():
        C.m = lambda self, x: x * 3

    return f, change


@case
def super_patch():
    class B:
        def m(self, x):
            return x * 2

    class C(B):
        def m(self, x):
            return super().m(x) + 1

    o = C()

    def f(x):
        return o.m(x)

    def change():
        B.m = lambda self, x: x * 3

    return f, change


@case
def property_reads():
    class C:
        def __init__(self):
            self._k = 2.0

        @property
        def k(self):
            return self._k

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(o, "_k", 5.0)


@case
def prop_replaced():
    class C:
        @property
        def k(self):
            return 2.0

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(C, "k", property(lambda s: 3.0))


@case
def descriptor():
    class D:
        def __init__(self):
            self.v = 2.0

        def __get__(self, o, t):
            return self.v

    d = D()

    class C:
        k = d

    o = C()

    def f(x):
        return x * o.k

    return f, lambda: setattr(d, "v", 5.0)


@case
def class_of_an_object():
    class A:
        def m(self, x):
            return x + 1

    class B:
        def m(self, x):
            return x + 2

    o = A()

    def f(x):
        return o.m(x)

    return f, lambda: setattr(o, "__class__", B)


@case
def static_method():
    class C:
        @staticmethod
        def m(x):
            return x * 2

    def f(x):
        return C.m(x)

    def change():
        C.m = staticmethod(lambda x: x * 3)

    return f, change


@case
def class_method():
    class C:
        k = 2.0

        @classmethod
        def m(cls, x):
            return x * cls.k

    def f(x):
        return C.m(x)

    def change():
        C.k = 7.0

    return f, change


@case
def isinstance_abc():
    class A(abc.ABC):  # noqa: B024
        pass

    class C:
        pass

    c = C()

    def f(x):
        return x * 2 if isinstance(c, A) else x * 3

    return f, lambda: A.register(C)


@case
def bases_changed():
    class A:
        k = 1.0

    class B:
        k = 2.0

    class C(A):
        pass

    c = C()

    def f(x):
        return x * c.k

    def change():
        C.__bases__ = (B,)

    return f, change


@case
def metaclass_attr():
    class M(type):
        k = 2.0

    class C(metaclass=M):
        pass

    def f(x):
        return x * C.k

    return f, lambda: setattr(M, "k", 5.0)


@case
def metaclass_shadow():
    class M(type):
        k = 2.0

    class C(metaclass=M):
        pass

    def f(x):
        return x * C.k

    return f, lambda: setattr(C, "k", 5.0)


@case
def constructor_replaced():
    class A:
        def __init__(self):
            self.k = 2.0

    h = [A]

    def f(x):
        return x * h[0]().k

    def change():
        A.__init__ = lambda s: setattr(s, "k", 7.0)

    return f, change


@case
def new_replaced():
    class A:
        k = 2.0

    def f(x):
        return x * A().k

    def change():
        class Z:
            k = 9.0

        A.__new__ = lambda c: Z()

    return f, change


@case
def bases_that_only_isinstance_asks():
    class A:
        pass

    class B:
        pass

    class C(B):
        pass

    o = C()

    def f(x):
        return x * 2 if isinstance(o, A) else x

    return f, lambda: setattr(C, "__bases__", (B, A))


@case
def bases_that_only_issubclass_asks():
    class A:
        pass

    class B(A):
        pass

    class C(B):
        pass

    def f(x):
        return x * 2 if issubclass(C, A) else x

    return f, lambda: setattr(B, "__bases__", (type("D", (), {}),))


@case
def mro_name():
    class A:
        pass

    class C(A):
        pass

    def f(x):
        return x * len(C.__mro__)

    class B:
        pass

    def change():
        C.__bases__ = (A, B)

    return f, change


@case
def inherited_class_method_hidden():
    class B:
        @classmethod
        def m(cls, x):
            return x * 2

    class C(B):
        pass

    def f(x):
        return C.m(x)

    def change():
        C.m = classmethod(lambda cls, x: x * 3)

    return f, change


@case
def inherited_static_method_hidden():
    class B:
        @staticmethod
        def m(x):
            return x * 2

    class C(B):
        pass

    def f(x):
        return C().m(x)

    def change():
        C.m = staticmethod(lambda x: x * 3)

    return f, change


@case
def builtin_class_method_hidden():
    class C(dict):
        pass

    def f(x):
        return x * len(C.fromkeys("abc"))

    def change():
        C.fromkeys = classmethod(lambda cls, keys: "a")

    return f, change


@case
def apply_hidden():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    def f(x):
        return Double.apply(x)

    def change():
        Double.apply = staticmethod(lambda x: x * 3)

    return f, change


@case
def cls_name():
    class C:
        pass

    def f(x):
        return x * len(C.__name__)

    def change():
        C.__name__ = "Longer"

    return f, change


@case
def del_attr_error():
    class A:
        pass

    a = A()
    a.k = 5.0

    def f(x):
        try:
            return x * a.k
        except AttributeError:
            return x * 100

    return f, lambda: delattr(a, "k")


Distribution, Normal = torch.distributions.Distribution, torch.distributions.Normal


@case
def setting_of_a_library_class():
    before = Distribution._validate_args

    def f(x):
        try:
            return torch.distributions.Normal(x, -x).loc, Distribution._validate_args
        except ValueError as error:
            return x * 100, type(error).__name__

    set_default = Distribution.set_default_validate_args
    return f, lambda: set_default(not before), lambda: set_default(before)


def library_class(name, replacement, question):
    """A case in which the user's own code asks for an attribute of a library's class, which is replaced."""

    def make():
        before = vars(Normal)[name]

        def f(x):
            return x + 1, question(Normal(x, 1.0, validate_args=False))

        return (
            f,
            lambda: setattr(Normal, name, replacement),
            lambda: setattr(Normal, name, before),
        )

    make.__name__ = f"library_class_{name}"
    CASES.append(make)


library_class("log_prob", lambda self, value: value * 99, lambda n: n.log_prob(n.loc))
library_class("mean", property(lambda self: 5.0), lambda n: n.mean)
library_class("expand", lambda self, shape: self, lambda n: Normal.expand(n, (3, 2, 3)).loc)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_between_calls_is_seen(make):
    check(make)
