"""Classes that captured code defines: in the graph as long as nothing of them outlives it."""

import abc
import collections
import dataclasses
import enum
import functools
import time

import pytest
import torch
from differential import check
from torch import nn
from weft_bytecode_capture import capture

X, Y = torch.arange(4.0) - 1.5, torch.linspace(-1.0, 1.0, 4)
KEPT = []


class Outer:
    def scale(self, x):
        return x * 2

    @classmethod
    def named(cls):
        return cls.__name__


class WithProperty:
    @property
    def value(self):
        return self.held


class Registered:
    found = []

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        Registered.found.append(cls.__name__)


class Meta(type):
    @property
    def tag(cls):
        return cls.__name__


class Doubled:
    def __get__(self, instance, owner=None):
        return 2

    def __set_name__(self, owner, name):
        owner.noted = name


def methods(x, n):
    class Box:
        """A box."""

        count = 0
        table = {"a": 1}
        weight = x + 1

        def __init__(self, value):
            self.value = value
            Box.count += 1

        @property
        def twice(self):
            return self.value * 2

        @twice.setter
        def twice(self, value):
            self.value = value / 2

        @staticmethod
        def plus(value):
            return value + n

        @classmethod
        def make(cls, value):
            return cls(value * 3)

        def __add__(self, other):
            return type(self)(self.value + other.value)

        def __eq__(self, other):
            return isinstance(other, Box)

        def __repr__(self):
            return f"{type(self).__name__} of {self.value.shape}"

        def __getattr__(self, name):
            return len(name)

    class Derived(Box):
        def __init__(self, value):
            super().__init__(value)
            self.table["b"] = n

        def total(self):
            return self.twice + self.weight

    one = Derived.make(x)
    two = one + Derived(x)
    two.twice = x
    facts = Box.count, one.table, repr(two), one == two, one.hello, Box.__doc__, Box.__name__
    order = [kind.__name__ for kind in Derived.__mro__]
    return two.total() + Box.plus(one.value), facts, order, type(one) is Derived


def derived(x):
    class Named(Outer):
        def scale(self, x):
            return super().scale(x) + 1

    return Named().scale(x), Named.named(), issubclass(Named, Outer)


def in_bodies(x, n):
    class Table:
        squares = [i * i for i in range(n)]
        total = sum(squares)
        if n > 2:
            kind = "large"
        else:
            kind = "small"
        for i in range(3):
            last = i
        del i
        n = n + 1

        class Inner:
            size = n

    return x * Table.total, Table.kind, Table.last, hasattr(Table, "i"), Table.n, Table.Inner.size


def in_a_loop(x):
    made = []
    for i in range(3):

        class Step:
            number = i

            def run(self, x):
                return x * self.number + i  # noqa: B023

        made.append(Step())
    return sum(step.run(x) for step in made), len({type(step) for step in made})


def exceptions(x):
    class Stop(Exception):
        def __init__(self, reason):
            super().__init__(reason)
            self.reason = reason

    for i in range(5):
        try:
            if i == 3:
                raise Stop(i)
            x = x + i
        except Stop as stop:
            return x, stop.reason, str(stop)
    return None


def abstract(x):
    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

        def twice(self, x):
            return self.run(x) * 2

    class Full(Base):
        def run(self, x):
            return x + 1

    try:
        Base()
    except TypeError as error:
        return Full().twice(x), str(error), isinstance(Full(), Base)


def containers(x):
    class Defaults(dict):
        def __missing__(self, key):
            return key * 2

    class Items(list):
        def total(self):
            return sum(self)

    Point = collections.namedtuple("Point", "a b", defaults=[3])
    point = Point(x)
    return x * Defaults()[3] + Items([1, 2]).total(), point.a + point.b, len(point), Point._fields


def data_classes(x):
    @dataclasses.dataclass
    class Pair:
        a: torch.Tensor
        b: int = 2
        c: list = dataclasses.field(default_factory=list)
        d: list = dataclasses.field(default_factory=lambda: [x])

        def total(self):
            return self.a * self.b + self.d[0]

    @dataclasses.dataclass(frozen=True, order=True)
    class Key:
        k: int
        n: str = "n"

    pair = Pair(x, 3)
    pair.c.append(1)
    try:
        Key(1).k = 2
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    names = [field.name for field in dataclasses.fields(Pair)]
    facts = Key(1) < Key(2), Key(1) == Key(1), repr(Key(3)), hash(Key(1)) == hash(Key(1)), names
    return pair.total(), pair.c, Pair(x).c, text, facts, dataclasses.replace(pair, b=5).b


def data_class_of_a_later_class(x):
    try:

        @dataclasses.dataclass
        class Pair:
            a: Later
            b: int = 2

        class Later:
            pass

    except NameError:  # until CPython 3.13
        return x - 1
    return x * Pair(1).b, [field.name for field in dataclasses.fields(Pair)]


def annotations_read(x):
    class Pair:
        a: int
        b: str = "n"

    names = list(Pair.__annotations__)
    Pair.__annotations__["c"] = float
    return x * len(Pair.__annotations__), names


def annotated_by_a_name_that_is_bound_anew(x):
    kind = int

    class Pair:
        a: kind

    kind = float
    return x + 1, Pair.__annotations__["a"] is kind


def modules(x):
    class Twice(nn.Module):
        def forward(self, x):
            return x * 2

    return Twice()(x), Twice()


def modules_used(x):
    class Twice(nn.Module):
        def forward(self, x):
            return x * 2

    return Twice()(x)


def changed(x):
    class Counter:
        count = 0
        gone = 1

    Counter.count += 2
    Counter.more = x
    del Counter.gone
    return x + Counter.count, Counter.more, hasattr(Counter, "gone"), Counter().count


def closures(x):
    total = 0

    class Adder:
        def add(self, n):
            nonlocal total
            total += n
            return self

    Adder().add(2).add(3)
    return x + total


def returned(x):
    class Out:
        def __init__(self, a):
            self.a = a

    return Out(x + 1).a, Out(x * 2)


def class_returned(x):
    class Out:
        a = 1

    return x + Out.a, Out


def method_returned(x):
    class Out:
        def run(self, x):
            return super().__hash__() and x

    return x, Out.run


def kept(x):
    class Out:
        a = 1

    KEPT.append(Out())
    return x + KEPT[-1].a


def data_class_of_unknown_annotations(x):
    @dataclasses.dataclass
    class Pair:
        a: int
        _: dataclasses.KW_ONLY
        b: dataclasses.InitVar[int] = 2

        def __post_init__(self, b):
            self.c = self.a * b

    return x + Pair(3, b=4).c


def annotated_by_an_object(x):
    note = Outer()

    class Noted:
        a: note = 1

    return x + Noted.a, Noted.__annotations__["a"] is note


def init_returned(x):
    @dataclasses.dataclass
    class Out:
        a: int = 1

    return x, Out.__init__


def with_subclass_hook(x):
    class Shaped(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, kind):
            return bool(x.dim()) and hasattr(kind, "shape")

    return x, isinstance(x, Shaped), isinstance(3, Shaped)


def raised(x):
    class Bad(ValueError):
        pass

    raise Bad("bad")


def behind_a_break(x):
    class Out:
        a = 2

    out = Out()
    time.sleep(0)
    return x * out.a


def with_hooks(x):
    class Known(Registered):
        pass

    return x + len(Known.__name__)


def by_metaclass(x):
    class Tagged(metaclass=Meta):
        pass

    return x + len(Tagged.tag)


def with_descriptor(x):
    class Holder:
        two = Doubled()

    return x * Holder().two, Holder.noted


def with_cached_property(x):
    class Holder:
        @functools.cached_property
        def two(self):
            return 2

    return x * Holder().two


def enumeration(x):
    class Mode(enum.Enum):
        A = 1

    return x + Mode.A.value


def with_slots(x):
    class Slotted:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

    try:
        Slotted(x).b = 1
    except AttributeError:
        return Slotted(x).a + 1


class Counting:
    count = 1
    gone = 1


def through_super(x):
    class Base:
        table = [1, 2]
        weight = x + 1
        more = {"a": x}

    class Derived(Base):
        table = None

        def run(self):
            return super().weight + sum(super().table) + super().more["a"]

    class Sub(Counting):
        count = 5

        def run(self):
            return super().count, hasattr(super(), "gone")

    Counting.count += 2
    del Counting.gone
    facts = Sub().run()
    Counting.count, Counting.gone = 1, 1
    return Derived().run(), facts


def by_type(x, n):
    Made = type("Made", (Outer,), {"n": n, "run": lambda self, x: self.scale(x) * self.n})
    return (
        Made().run(x),
        Made.__name__,
        type(Made()) is Made,
        type("Empty", (), {})().__class__.__name__,
    )


def accessors_of_others(x):
    class Settable(WithProperty):
        @WithProperty.value.setter
        def value(self, value):
            self.held = value + 1

    class Deletable(Settable):
        @Settable.value.deleter
        def value(self):
            self.held = 7

    one = Deletable()
    one.value = x
    found = one.value
    del one.value
    return found, one.value, Settable.value.fget is WithProperty.value.fget


def that_fails(x):
    try:

        class Bad(int, str):
            pass

    except TypeError as error:
        return x, str(error)


def of_anothers_body(x):
    class Twice(type):
        def __new__(mcls, name, bases, namespace):
            made = super().__new__(mcls, name, bases, namespace)
            type("Other", (), namespace)
            return made

    try:

        class Taken(metaclass=Twice):
            def mine(self):
                return __class__

    except TypeError as error:
        return x * 2, str(error).partition(" defining ")[0]


ONE_GRAPH = [
    (methods, (2,), (2,), (3,)),
    (derived, ()),
    (in_bodies, (2,), (4,)),
    (by_type, (2,), (4,)),
    (accessors_of_others, ()),
    (through_super, ()),
    *((function, ()) for function in (in_a_loop, exceptions, abstract, containers)),
    *((function, ()) for function in (modules_used, changed, closures, with_slots, that_fails)),
]
BREAKING = [
    returned, kept, raised, behind_a_break, with_hooks, by_metaclass, with_descriptor, enumeration,
    with_cached_property, data_classes, with_subclass_hook, of_anothers_body,
    data_class_of_unknown_annotations, annotated_by_an_object, data_class_of_a_later_class,
    annotations_read, annotated_by_a_name_that_is_bound_anew,
]  # fmt: skip


@pytest.mark.parametrize(("function", "calls"), [(row[0], row[1:]) for row in ONE_GRAPH])
def test_in_one_graph(function, calls) -> None:
    check(function, [(x, *rest) for x in (X, Y) for rest in calls])


@pytest.mark.parametrize("function", BREAKING)
def test_as_eager(function) -> None:
    def results(x):
        try:
            found = function(x)
        except ValueError as error:
            return type(error).__qualname__, str(error)
        return found[0] if function is returned else found

    check(
        results,
        [(X,), (Y,)],
        fullgraph=False,
        state=lambda: (len(KEPT), len({type(one) for one in KEPT}), list(Registered.found)),
        reset=lambda: (KEPT.clear(), Registered.found.clear()),
    )


def test_data_classes_in_one_graph() -> None:
    check(data_classes, [(X,), (Y,)])


@pytest.mark.parametrize("function", [class_returned, method_returned, modules, init_returned])
def test_each_call_has_a_class_of_its_own(function) -> None:
    captured = capture(function)
    found = [captured(X).result[1] for _ in range(3)]
    kinds = {
        id(one if isinstance(one, type) else getattr(one, "__code__", type(one))) for one in found
    }
    expected = function(X)[1]
    assert len(set(map(id, found))) == 3
    assert len(kinds) == (1 if function is method_returned else 3) or function is init_returned
    assert (
        type(expected) is type(found[0])
        or type(expected).__qualname__ == type(found[0]).__qualname__
    )


def test_nothing_is_guarded_on_a_class_of_the_frames_own() -> None:
    result = capture(methods)(X, 2)
    assert not any("Box" in guard.source.name() for guard in result.guards)
    assert len(result.reports) == 1
