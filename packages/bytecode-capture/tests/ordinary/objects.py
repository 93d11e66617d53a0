"""Programs about classes: operators, descriptors, inheritance, metaclasses, caches."""

from __future__ import annotations

import abc
import copy
import functools
import logging
import math
import operator
import sys
import types
from collections import UserDict
from typing import Generic, TypeVar

import torch

from . import Programs, X, Y

PROGRAMS = Programs()
LOG: list = []
LOGGED = {"state": lambda: list(LOG), "reset": LOG.clear}


@functools.total_ordering
class Vector:
    def __init__(self, *parts):
        self.parts = parts

    def __add__(self, other):
        return Vector(*map(operator.add, self.parts, other.parts))

    def __sub__(self, other):
        return self + -other

    def __neg__(self):
        return Vector(*(-part for part in self.parts))

    def __mul__(self, factor):
        if isinstance(factor, Vector):
            return sum(a * b for a, b in zip(self.parts, factor.parts, strict=False))
        return Vector(*(part * factor for part in self.parts))

    __rmul__ = __mul__

    def __eq__(self, other):
        return isinstance(other, Vector) and self.parts == other.parts

    def __lt__(self, other):
        return abs(self) < abs(other)

    def __abs__(self):
        return math.hypot(*self.parts)

    def __getitem__(self, index):
        return self.parts[index]

    def __len__(self):
        return len(self.parts)

    def __repr__(self):
        return f"Vector{self.parts!r}"

    def __format__(self, specification):
        return "<" + ", ".join(format(part, specification) for part in self.parts) + ">"

    def __hash__(self):
        return hash(self.parts)


@PROGRAMS((X, (3, 4)), (X, (0, 1)), (Y, (1, 1)))
def vectors(x, parts):
    v, w = Vector(*parts), Vector(1, 2)
    total = 2 * v - w
    scaled = Vector(x, x + 1) * 2
    return (
        scaled[0] * (v * w),
        repr(total),
        f"{total:.1f}",
        v >= w,
        v == Vector(*parts),
        list(v),
        len(v),
    )


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance, value):
        if value <= 0:
            raise ValueError(f"{self.name[1:]} must be positive, got {value}")
        setattr(instance, self.name, value)


class Rectangle:
    width = Positive()
    height = Positive()

    def __init__(self, width, height):
        self.width, self.height = width, height

    @property
    def area(self):
        return self.width * self.height

    @area.setter
    def area(self, value):
        self.height = value / self.width


@PROGRAMS((X, 2, 3), (X, 1, 0), (Y, 4, 1))
def descriptors(x, width, height):
    try:
        box = Rectangle(width, height)
    except ValueError as error:
        return x, str(error)
    box.area = 12
    box.width += 1
    return x * box.area, vars(box), type(Rectangle.width).__name__


class Shape(abc.ABC):
    kinds: dict = {}

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Shape.kinds[cls.__name__.lower()] = cls

    @abc.abstractmethod
    def area(self): ...

    def describe(self):
        return f"{type(self).__name__} of {self.area():.2f}"


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2


class Circle(Shape):
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius**2


@PROGRAMS((X, "square", 2), (X, "circle", 1.5), (X, "shape", 1), (Y, "cube", 1))
def abstract_classes(x, name, size):
    kind = {**Shape.kinds, "shape": Shape}.get(name)
    if kind is None:
        return x, sorted(Shape.kinds)
    try:
        shape = kind(size)
    except TypeError:
        return x - 1, issubclass(kind, Shape)
    return x * shape.area(), shape.describe(), isinstance(shape, Square)


class Base:
    def __init__(self):
        self.trace = ["base"]

    def run(self, x):
        return x + 1


class Left(Base):
    def __init__(self):
        super().__init__()
        self.trace.append("left")

    def run(self, x):
        return super().run(x) * 2


class Right(Base):
    def __init__(self):
        super().__init__()
        self.trace.append("right")

    def run(self, x):
        return super().run(x) * 3 - 1


class Both(Left, Right):
    pass


@PROGRAMS((X,), (Y,))
def diamond(x):
    both = Both()
    order = [kind.__name__ for kind in Both.__mro__]
    return both.run(x), both.trace, order, Both.run is Left.run, Left.run(both, x)


class Registered(type):
    def __new__(mcs, name, bases, namespace, **options):
        made = super().__new__(mcs, name, bases, namespace)
        made.tag = options.get("tag", name.lower())
        return made

    def __call__(cls, *arguments):
        LOG.append(f"making {cls.__name__}")
        return super().__call__(*arguments)

    def __instancecheck__(cls, instance):
        return getattr(instance, "tag", None) == "box" or super().__instancecheck__(instance)

    def __len__(cls):
        return len(cls.__name__)


class Widget(metaclass=Registered, tag="box"):
    def __init__(self, size):
        self.size = size


class Gadget(metaclass=Registered):
    def __init__(self, size):
        self.size = size * 2


@PROGRAMS((X, 2), (Y, 3), **LOGGED)
def metaclass(x, size):
    widget, gadget = Widget(size), Gadget(size)
    checks = isinstance(widget, Gadget), isinstance(gadget, Widget), len(Widget)
    return x * widget.size + gadget.size, checks, Widget.tag, Gadget.tag


class Proxy:
    def __init__(self, target):
        object.__setattr__(self, "target", target)

    def __getattr__(self, name):
        LOG.append(f"get {name}")
        return getattr(self.target, name)

    def __setattr__(self, name, value):
        LOG.append(f"set {name}")
        setattr(self.target, name, value)


@PROGRAMS((X, 2.0), (Y, 3.0), **LOGGED)
def proxied(x, rate):
    target = types.SimpleNamespace(rate=rate)
    proxy = Proxy(target)
    proxy.bias = proxy.rate + 1
    return x * proxy.rate + proxy.bias, vars(target), hasattr(proxy, "none")


class Slotted:
    __slots__ = ("count", "value")

    def __init__(self, value):
        self.value = value
        self.count = 0

    def bump(self):
        self.count += 1
        return self


@PROGRAMS((X,), (Y,))
def slots(x):
    made = Slotted(x).bump().bump()
    try:
        made.other = 1
    except AttributeError as error:
        message = str(error)
    return made.value * made.count, message, hasattr(made, "__dict__")


class Defaults(dict):
    def __missing__(self, key):
        value = self[key] = f"<{key}>"
        return value

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Upper(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key.upper(), value)

    def __getitem__(self, key):
        return super().__getitem__(key.upper())

    def __contains__(self, key):
        return super().__contains__(key.upper())


class Logged(list):
    def append(self, item):
        LOG.append(item)
        super().append(item)

    def __getitem__(self, index):
        return ("at", super().__getitem__(index))


class Unique(set):
    def add(self, item):
        if item in self:
            LOG.append(f"again {item}")
        super().add(item)


OUTSIDE = {
    "defaults": Defaults(a=1),
    "upper": Upper(A=2),
    "logged": Logged([5, 6]),
    "unique": Unique({1}),
}


@PROGRAMS((X,), (Y,), **LOGGED)
def subclasses_made_inside(x):
    defaults, upper, logged, unique = Defaults(a=1), Upper(), Logged([5]), Unique()
    upper["b"] = 3
    logged.append(7)
    unique.add(1)
    unique.add(1)
    found = (
        defaults["a"],
        defaults["z"],
        defaults.y,
        upper["B"],
        "b" in upper,
        logged[1],
        list(unique),
    )
    return x + upper["b"], found, dict(defaults), dict(upper), len(logged)


@PROGRAMS((X,), (Y,), one_graph=False, **LOGGED)
def subclasses_from_outside(x):
    defaults, upper = OUTSIDE["defaults"], OUTSIDE["upper"]
    found = [defaults["a"], defaults.a, upper["a"], "a" in upper, "q" in defaults]
    upper["n"] = 4
    found += [upper["N"], sorted(upper), OUTSIDE["logged"][0], len(OUTSIDE["logged"])]
    OUTSIDE["unique"].add(1)
    return x * upper["n"], found


class Settings(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@PROGRAMS((X, {"A": 1}), (Y, {"B": 2, "c": 3}))
def user_dict(x, given):
    settings = Settings(given)
    settings["New"] = 5
    return x + settings["new"], dict(settings), len(settings), "A" in settings, settings.get("q", 0)


@functools.lru_cache(maxsize=2)
def expensive(n):
    LOG.append(f"computed {n}")
    return n * n


def clear_caches():
    LOG.clear()
    expensive.cache_clear()


@PROGRAMS(
    (X, (1, 2, 1)), (X, (3, 2, 1, 3)), (Y, (5,)),
    one_graph=False, state=lambda: (list(LOG), expensive.cache_info()), reset=clear_caches,
)  # fmt: skip
def cached_numbers(x, numbers):
    for number in numbers:
        x = x + expensive(number)
    return x, tuple(expensive.cache_info())


class Lazy:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def norm(self):
        LOG.append("norm")
        return (self.x**2).sum()

    @staticmethod
    def twice(x):
        return x * 2

    @classmethod
    def made(cls, x):
        return cls(cls.twice(x))


@PROGRAMS((X,), (Y,), **LOGGED)
def cached_properties(x):
    lazy = Lazy.made(x)
    first = lazy.norm + lazy.norm
    del lazy.norm
    return first + lazy.norm, sorted(vars(lazy))


@functools.singledispatch
def show(value):
    return f"object {value}"


@show.register
def _(value: int):
    return value + 1


@show.register(list)
def _(value):
    return [show(item) for item in value]


@PROGRAMS((X, [1, "a", [2]]), (X, 5), (Y, "z"))
def single_dispatch(x, value):
    return x + len(str(show(value))), show(value)


T = TypeVar("T")


class Stack(Generic[T]):
    def __init__(self):
        self.items: list[T] = []

    def push(self, item: T) -> Stack[T]:
        self.items.append(item)
        return self

    def __iter__(self):
        return reversed(self.items)


@PROGRAMS((X, 2), (Y, 3), one_graph=sys.version_info < (3, 12))  # there a method in C breaks
def generic_stack(x, times):
    stack = Stack[torch.Tensor]()
    for power in range(times):
        stack.push(x**power)
    return sum(stack), len(stack.items), [t.sum() for t in stack]


@PROGRAMS((X, 2), (Y, 3), one_graph=False)
def class_made_inside(x, factor):
    class Scaler:
        """Made anew in every call."""

        made = 0
        factor_name = f"f{factor}"

        def __init__(self):
            type(self).made += 1

        def __call__(self, y):
            return y * factor

    scaler = Scaler()
    return scaler(x), Scaler.made, Scaler.factor_name, Scaler.__doc__, type(scaler).__name__


class Node:
    def __init__(self, value, *children):
        self.value, self.children, self.parent = value, list(children), None
        for child in children:
            child.parent = self

    def __iter__(self):
        yield self
        for child in self.children:
            yield from child

    @property
    def depth(self):
        return 0 if self.parent is None else self.parent.depth + 1


@PROGRAMS((X, 1), (Y, 2))
def trees(x, base):
    root = Node(base, Node(base + 1, Node(base + 2)), Node(base + 3))
    total = sum(node.value * node.depth for node in root)
    deep = copy.deepcopy([1, [2, {"a": 3}]])
    deep[1][1]["a"] = total
    return x * total, [(node.value, node.depth) for node in root], deep


LOGGER = logging.getLogger("ordinary")
LOGGER.propagate = False


class Collect(logging.Handler):
    def emit(self, record):
        LOG.append((record.levelname, record.getMessage()))


LOGGER.addHandler(Collect())


@PROGRAMS((X, 2), (X, -1), (Y, 0), one_graph=False, **LOGGED)
def logs(x, level):
    y = x * 2
    LOGGER.warning("level %d of %s", level, "three")
    LOGGER.debug("not shown %s", level)
    if LOGGER.isEnabledFor(logging.ERROR) and level < 0:
        LOGGER.error("negative")
    return y + level


class Matrix:
    def __init__(self, data):
        self.data = data

    def __matmul__(self, other):
        return Matrix(self.data @ other.data)

    def __iadd__(self, other):
        self.data = self.data + other
        return self

    def __getitem__(self, key):
        rows, columns = key
        return Matrix(self.data[rows, columns])

    def __setitem__(self, key, value):
        self.data = self.data.clone()
        self.data[key] = value

    def __bool__(self):
        return self.data.numel() > 0

    def __index__(self):
        return self.data.shape[0]


@PROGRAMS((X,), (Y,))
def matrices(x):
    m = Matrix(x.reshape(2, 2))
    m = m @ m
    m += 1
    m[0, 1] = 5.0
    return m[:, 1:].data, bool(m), list(range(m)), [10, 20, 30][m]


class Event:
    def __init__(self):
        self.handlers = []

    def __iadd__(self, handler):
        self.handlers.append(handler)
        return self

    def __call__(self, *arguments):
        return [handler(*arguments) for handler in self.handlers]


class Model:
    def __init__(self):
        self.changed = Event()
        self.seen = []

    def note(self, value):
        self.seen.append(value)
        return value * 2


@PROGRAMS((X, 2), (Y, 5))
def bound_methods_as_handlers(x, times):
    model = Model()
    model.changed += model.note
    model.changed += lambda value: value + 1
    results = [model.changed(x * i) for i in range(times)]
    return results, model.seen, model.note == model.changed.handlers[0]
