"""Classes themselves: inheritance, metaclasses, abstract classes, ``__new__``, enumerations."""

from __future__ import annotations

import abc
import enum

import pytest
from differential import check


class A:
    def who(self):
        return ["A"]


class B(A):
    def who(self):
        return ["B", *super().who()]


class C(A):
    def who(self):
        return ["C", *super().who()]


class D(B, C):
    def who(self):
        return ["D", *super().who()]


def diamond(x):
    return (
        D().who(),
        isinstance(D(), A),
        issubclass(D, C),
        D.__name__,
        type(D()).__mro__[1] is B,
        D.__bases__ == (B, C),
    )


class Meta(type):
    made = 0

    def __call__(cls, *args):
        instance = super().__call__(*args)
        instance.tag = "meta"
        return instance

    def __getattr__(cls, name):
        return f"{cls.__name__}.{name}"

    @property
    def size(cls):
        return 3

    def describe(cls):
        return cls.__name__.lower()


class WithMeta(metaclass=Meta):
    def __init__(self, x):
        self.x = x


def metaclasses(x):
    w = WithMeta(x)
    return w, WithMeta.size, WithMeta.describe(), WithMeta.unknown, isinstance(w, WithMeta)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @classmethod
    def __subclasshook__(cls, other):
        return NotImplemented


class Square(Shape):
    def __init__(self, a):
        self.a = a

    def area(self):
        return self.a * self.a


def abstract(x):
    s = Square(x)
    return s.area(), isinstance(s, Shape), isinstance(3, Shape)


class Singleton:
    instance = None

    def __new__(cls, value):
        made = super().__new__(cls)
        made.from_new = value
        return made

    def __init__(self, value):
        self.value = value


class Other:
    def __new__(cls):
        return [cls.__name__]

    def __init__(self):
        raise RuntimeError("not called")


def with_new(x):
    return Singleton(x), Other()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

    @property
    def upper(self):
        return self.value.upper()

    @classmethod
    def default(cls):
        return cls.FAST


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Flags(enum.Flag):
    A = 1
    B = 2


def enums(x):
    found = [m.name for m in Mode]
    return (
        Level.LOW < Level.HIGH,
        Level.LOW + x,
        Mode("fast") is Mode.FAST,
        Mode["SLOW"].upper,
        Mode.default(),
        found,
        Flags.A | Flags.B,
        Mode.FAST == Mode.SLOW,
        (Color.RED == "red", Color.RED != Color.BLUE, Color.RED + "dish", f"{Color.BLUE.value}"),
        Mode.FAST.name,
        {Mode.FAST: x}[Mode.FAST],
    )


@pytest.mark.parametrize("function", [diamond, metaclasses, abstract, with_new, enums])
def test_classes(function):
    check(function, [(1,), (3,), (4,)])
