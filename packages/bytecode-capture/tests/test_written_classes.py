"""Attributes of classes with metaclasses, written in a compiled function, beside plain execution."""

import abc

import pytest
import torch
from differential import check

X = torch.arange(3.0)


class Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counted.calls += 1
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Registering(type):
    known = 3

    @property
    def limit(cls):
        return 7

    def __call__(cls, *args):
        return super().__call__(*args)


class Registered(metaclass=Registering):
    calls = 0


class Abstract(abc.ABC):
    calls = 0

    @abc.abstractmethod
    def run(self):
        pass


class Refusing(type):
    def __setattr__(cls, name, value):
        super().__setattr__(name, value * 10)


class Tenfold(metaclass=Refusing):
    calls = 0


KINDS = [Counted, Registered, Abstract]


def _reset():
    for kind in (*KINDS, Tenfold):
        type.__setattr__(kind, "calls", 0)
        if "added" in vars(kind):
            type.__delattr__(kind, "added")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_written_and_read(kind):
    def f(x):
        kind.calls = kind.calls + 2
        kind.added = [kind.calls]
        del kind.calls
        kind.calls = 1 + kind.added[0]
        return x + kind.calls, kind.added

    check(f, [(X,), (X,)], reset=_reset, state=lambda: (kind.calls, vars(kind).get("added")))


def applied(x):
    y = Counted.apply(x)
    return Counted.apply(y), Counted.calls


@pytest.mark.parametrize("requires_grad", [False, True])
def test_counted_by_a_forward(requires_grad):
    x = torch.arange(3.0).requires_grad_(requires_grad)
    check(applied, [(x,), (x,)], reset=_reset, state=lambda: Counted.calls)


def test_what_a_metaclass_makes_of_a_write():
    def tenfold(x):
        Tenfold.calls = 2
        return x + Tenfold.calls

    def refused(x):
        try:
            Registered.limit = 3
        except AttributeError as error:
            return x + Registered.limit, type(error).__name__

    def over_the_metaclass(x):
        Registered.known = 5
        found = Registered.known
        del Registered.known
        return x + found, Registered.known

    for function in (tenfold, refused, over_the_metaclass):
        check(function, [(X,), (X,)], fullgraph=False, reset=_reset, state=lambda: Tenfold.calls)
