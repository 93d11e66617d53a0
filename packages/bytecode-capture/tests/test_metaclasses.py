"""Classes that captured code defines by a metaclass which takes no part in making them."""

import abc

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(3.0)


def with_methods(x):
    class Meta(type):
        @property
        def size(cls):
            return 3

        def twice(cls, n):
            return cls.k * n

        def __len__(cls):
            return 7

    class A(metaclass=Meta):
        k = 4

    class B(A):
        k = 5

    kinds = isinstance(B(), A), type(B) is Meta, B.__mro__[1] is A
    return x + A.size + A.twice(2), B.twice(3), len(A), kinds


def with_special_methods(x):
    class Meta(type):
        def __getattr__(cls, name):
            return name + "!"

        def __iter__(cls):
            return iter([1, 2])

        def __contains__(cls, key):
            return key == 3

        def __getitem__(cls, key):
            return key * 2

    class A(metaclass=Meta):
        pass

    return x + 1, A.foo, list(A), 3 in A, A[4]


def abstract(x):
    class Meta(abc.ABCMeta):
        def make(cls):
            return cls()

    class A(metaclass=Meta):
        @abc.abstractmethod
        def f(self): ...

    class B(A):
        def f(self):
            return 3

    try:
        A.make()
    except TypeError as error:
        return x + B.make().f(), str(error)


@pytest.mark.parametrize("function", [with_methods, with_special_methods, abstract])
def test_metaclasses(function):
    check(function, [(X,), (X + 1,)])


def takes_part(x):
    class Meta(type):
        def __init__(cls, *arguments):
            cls.made = 5

    class A(metaclass=Meta):
        pass

    return x + A.made


def test_one_that_takes_part_breaks():
    check(takes_part, [(X,)], fullgraph=False)


def own_gradient(x):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            ctx.save_for_backward(x)
            return x.sin() * k

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * ctx.k * 10 + x, None

    return Scaled.apply(x, 3) + Scaled.apply(x.cos(), 2)


def test_autograd_functions_defined_inside():
    compiled = compile_frames(own_gradient, run_graph, CaptureOptions(fullgraph=True))
    for x in (X, X + 1):
        given, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(given).sum().backward()
        own_gradient(wanted).sum().backward()
        torch.testing.assert_close(given.grad, wanted.grad)
