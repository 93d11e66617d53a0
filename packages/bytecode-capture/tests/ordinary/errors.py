"""Programs that read what errors say, and that give operators and builtins objects of their own."""
# ruff: noqa: UP006, UP007, UP045 - the old spellings have classes of their own

from __future__ import annotations

import math
import os
import struct
import sys
import typing

from . import Programs, X

PROGRAMS = Programs()


class Nothing:
    pass


class Two:
    def __index__(self):
        return 2


class Asked:
    def __round__(self, digits=None):
        return "round", digits

    def __divmod__(self, other):
        return "divmod", other

    def __rdivmod__(self, other):
        return "rdivmod", other

    def __pow__(self, other, modulus=None):
        return "pow", other, modulus

    def __rpow__(self, other):
        return "rpow", other

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __trunc__(self):
        return "trunc"

    def __fspath__(self):
        return "a/b"


class Both:
    """Slots, and a dict beside them."""

    __slots__ = ("__dict__", "a")

    def __init__(self):
        self.a = 1
        self.b = 2


def said(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error)


@PROGRAMS((X, Nothing()), (X, 2.5), (X, 3), (X, "t"), (X, [1]))
def of_sequences(x, other):
    def in_place():
        items = (1,)
        items += other
        return items

    return x + 1, [
        said(lambda: [1] * other),
        said(lambda: other * (1,)),
        said(lambda: "a" * other),
        said(lambda: other * b"a"),
        said(lambda: [1] + other),
        said(lambda: (1,) + other),
        said(lambda: "a" + other),
        said(lambda: b"a" + other),
        said(in_place),
    ]


@PROGRAMS((X, 3), (X, None))
def of_unpacking(x, value):
    return x + 1, [
        said(lambda: [*value]),
        said(lambda: {**value}),
        said(lambda: [].extend(value)),
        said(lambda: dict([value])),
        said(lambda: dict([(1, 2, 3)])),
        said(lambda: [1, 2][:: value and value - 3]),
        said(lambda: isinstance(1, value)) if value else None,
        said(lambda: issubclass(value, int)),
        said(lambda: issubclass(int, 3)),
    ]


@PROGRAMS((X,))
def repeated_by_index(x):
    return x + 1, "ab" * Two(), Two() * "ab", [1] * Two(), Two() * (1,), b"z" * Two()


@PROGRAMS((X,))
def asked(x):
    own = Asked()
    numbers = round(own), round(own, 2), math.floor(own), math.ceil(own), math.trunc(own)
    powers = pow(own, 2), pow(own, 2, 5), 2**own, own**3, divmod(own, 3), divmod(3, own)
    return x + 1, numbers, powers, os.fspath(own), os.path.join(own, "c"), os.fspath("d")


@PROGRAMS((X,))
def facts_of_the_interpreter(x):
    if sys.version_info >= (3, 8) and sys.version_info.major == 3:
        x = x + sys.float_info.dig
    version, *_ = sys.version_info
    facts = sys.version_info[:1], version, sys.version_info.index(3), 3 in sys.version_info
    return x, sys.intern("a"), struct.unpack("<i", struct.pack("<i", 3)), facts, sys.version_info


@PROGRAMS((X,))
def typing_forms(x):
    forms = typing.Optional[int], typing.Union[int, str], typing.List[int], typing.Tuple[int, ...]
    return x + 1, forms, typing.Callable[[int], str], typing.Literal["a"], typing.get_args(forms[1])


@PROGRAMS((X, Both()))
def slots_beside_a_dict(x, given):
    made = Both()
    made.c = given.d = x
    facts = [
        (sorted(vars(one)), "a" in vars(one), vars(one).get("a"), one.__dict__["b"], len(vars(one)))
        for one in (made, given)
    ]
    return made.c + made.a + given.b, facts
