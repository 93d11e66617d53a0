"""Instances: what captured code does with them is what CPython does."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import operator
import typing
from dataclasses import dataclass, field

import pytest
import torch
from differential import check


class Point:
    """Operators, reflected and in place."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return Point(self.x + other.x, self.y + other.y)

    def __radd__(self, other):
        return Point(self.x + other, self.y + other)

    def __mul__(self, factor):
        return Point(self.x * factor, self.y * factor)

    def __iadd__(self, other):
        self.x += other
        return self

    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None

    def __lt__(self, other):
        return self.x < other.x

    def __neg__(self):
        return Point(-self.x, -self.y)

    def __getitem__(self, index):
        return (self.x, self.y)[index]

    def __len__(self):
        return 2

    def __iter__(self):
        yield self.x
        yield self.y

    def __contains__(self, value):
        return value in (self.x, self.y)

    def __call__(self, k):
        return self.x * k

    def __bool__(self):
        return self.x != 0

    def __repr__(self):
        return f"Point({self.x}, {self.y})"


def operators(x):
    p, q = Point(x, 1), Point(2, 3)
    r = p
    r += 5
    return [
        p + q,
        3 + p,
        p * 2,
        -q,
        p[0],
        len(p),
        list(p),
        1 in p,
        p(3),
        bool(p),
        p == q,
        p != q,
        r is p,
        p < q,
    ]


def construct_and_escape(x):
    p = Point(x, x + 1)
    q = p
    q.z = [p.x]
    return p, q is p


@dataclass
class Config:
    width: int = 4
    names: list[str] = field(default_factory=list)
    scale: float = dataclasses.field(default=1.0, repr=False)

    def __post_init__(self):
        self.area = self.width * 2


@dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: int = 2


@dataclass(slots=True)
class Slotted:
    a: int
    b: object = None


@dataclass(kw_only=True)
class Child(Config):
    extra: int = 0


def dataclasses_made(n):
    c = Config(n)
    c.names.append("x")
    d = Child(width=2, extra=n)
    s = Slotted(n)
    s.b = c
    return (
        c,
        d,
        s,
        Frozen(n),
        Frozen(1) < Frozen(n),
        Frozen(n) == Frozen(n),
        dataclasses.replace(Frozen(n), b=5),
    )


def frozen_write(n):
    f = Frozen(n)
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError as error:
        return str(error), f
    return None


class Pair(typing.NamedTuple):
    first: int
    second: object = None

    def swapped(self):
        return Pair(self.second, self.first)


Triple = collections.namedtuple("Triple", "a b c", defaults=(9,))


def named_tuples(x):
    p = Pair(x)
    t = Triple(1, c=x, b=2)
    a, b = p
    return (
        p,
        t,
        a,
        b,
        p[0],
        t.c,
        p.swapped(),
        t._replace(a=5),
        t._asdict(),
        p == (x, None),
        len(t),
        Triple._fields,
        Triple._make([1, 2, 3]),
    )


class Output(collections.OrderedDict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = len(self)

    def __getitem__(self, key):
        if isinstance(key, int):
            return tuple(self.values())[key]
        return super().__getitem__(key)

    def __setattr__(self, name, value):
        if name in self.keys():
            super().__setitem__(name, value)
        super().__setattr__(name, value)


class Stack(list):
    def push(self, value):
        self.append(value)
        return self


class Names(dict):
    def __missing__(self, key):
        return key.upper()


def container_subclasses(x):
    o = Output(a=x, b=2)
    o.a = 7
    s = Stack([1])
    s.push(x).push(3)
    s[0] = 8
    n = Names(k=1)
    n["z"] = x
    return o, o[0], o["b"], list(o.items()), o.count, s, len(s), s[-1], sum(s), n["q"], "z" in n, n


class Recorder:
    log = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        return value * 2 if name == "doubled" else value

    def __getattr__(self, name):
        if name.startswith("dynamic_"):
            return name[8:]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value + 1 if isinstance(value, int) else value)

    def __delattr__(self, name):
        super().__delattr__(name)
        super().__setattr__("deleted", name)


def attribute_hooks(x):
    r = Recorder()
    r.doubled = x
    r.other = "s"
    del r.other
    return r.doubled, r.dynamic_name, hasattr(r, "nothing"), getattr(r, "no", 3), vars(r), r


class Celsius:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        return getattr(instance, self.name, 0) + 0.5

    def __set__(self, instance, value):
        setattr(instance, self.name, value)

    def __delete__(self, instance):
        delattr(instance, self.name)


class Room:
    temperature = Celsius()
    count = 0

    @property
    def warm(self):
        return self.temperature > 20

    @warm.setter
    def warm(self, value):
        self.temperature = 25 if value else 10

    @functools.cached_property
    def expensive(self):
        self.count += 1
        return [self.temperature]

    @classmethod
    def make(cls, t):
        room = cls()
        room.temperature = t
        return room

    @staticmethod
    def twice(x):
        return x * 2


class Kitchen(Room):
    @classmethod
    def make(cls, t):
        room = super().make(t + 1)
        room.stove = True
        return room


def descriptors(t):
    r = Room.make(t)
    a = r.temperature
    r.warm = True
    b = r.warm
    c = r.expensive is r.expensive
    k = Kitchen.make(t)
    del r.temperature
    return (
        a,
        b,
        c,
        r.count,
        k.stove,
        k.temperature,
        Room.twice(t),
        r.twice(t),
        type(k) is Kitchen,
        r.temperature,
        r,
    )


def scaled(x, factor, *, shift=0):
    return x * factor + shift


@functools.wraps(scaled)
def wrapped(x):
    return wrapped.__name__, wrapped.__wrapped__ is scaled, x


def partials(x):
    p = functools.partial(scaled, factor=2)
    q = functools.partial(p, shift=x)
    return p(x), q(3), q.keywords, functools.partial(scaled, 2)(x), q.func is scaled


@functools.singledispatch
def describe(x):
    return "object"


@describe.register
def _(x: int):
    return "int"


@describe.register(list)
def _(x):
    return "list of " + describe(x[0])


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


def slots(x):
    s = Slots(x)
    t = Slots(1)
    t.b = x
    t.b += 1
    try:
        s.b  # noqa: B018 - an empty slot
    except AttributeError:
        missing = True
    try:
        s.c = 1
    except AttributeError:
        refused = True
    return s, t, missing, refused


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


def iterator_class(n):
    c = Countdown(n)
    first = next(c)
    return first, list(c), list(Countdown(3)), sum(Countdown(n)), c


class Hashed:
    def __init__(self, key):
        self.key = key


def identity_keys(x):
    a, b = Hashed(x), Hashed(x)
    d = {a: 1, b: 2}
    return d[a], d[b], len(d), a in d, len({a, a, b})


def copies(x):
    c = Config(x, ["a"])
    s, d = copy.copy(c), copy.deepcopy(c)
    c.names.append("b")
    shared = [c.names]
    e = copy.deepcopy([shared, shared])
    return s.names, d.names, s.names is c.names, d == c, e[0] is e[1], e


def copied_collections(x):
    c = Config(x, [{1, 2}, frozenset({(3, 4)}), collections.deque([[x]], maxlen=2)])
    s, d = copy.copy(c.names[0]), copy.deepcopy(c)
    s.add(5)
    d.names[0].discard(1)
    d.names[2].append(6)
    d.names[2].append(7)
    pairs = zip(c.names[::2], d.names[::2], strict=True)
    queue = copy.copy(c.names[2])
    same = queue[0] is c.names[2][0], copy.deepcopy(c.names[2])[0] is c.names[2][0]
    return c.names, sorted(s), d.names, [a is b for a, b in pairs], copy.copy(c.names[1]), same


class NotedSet(set):
    def __init__(self, *values):
        super().__init__(*values)
        self.count = len(values)


def copied_set_subclass(x):
    a = NotedSet()
    return x + copy.copy(a).count, a.count


def instance_dict(x):
    p = Point(x, 2)
    p.__dict__["z"] = 4
    vars(p).update(w=x)
    return (
        p.z,
        sorted(vars(p)),
        "x" in p.__dict__,
        p.__dict__.get("q"),
        p.__dict__.pop("y"),
        hasattr(p, "y"),
        p,
    )


class Doubling:
    """A data descriptor that keeps its value in the instance dict, under its own name."""

    def __get__(self, instance, owner=None):
        return instance.__dict__.get("value", 0) + 1

    def __set__(self, instance, value):
        instance.__dict__["value"] = value * 2

    def __delete__(self, instance):
        del instance.__dict__["value"]


class Shadowing:
    value = Doubling()

    @property
    def size(self):
        return vars(self)["size"] + 10

    @size.setter
    def size(self, size):
        vars(self)["size"] = size


class ShadowingError(Exception):
    value = Doubling()


def written_behind_descriptors(s, x):
    """Each write is made once, past the descriptor, of objects from outside and of new ones."""
    made, failed = Shadowing(), ShadowingError(x)
    for target in (s, made, failed):
        target.value = x
    s.size = made.size = x + 1
    if x > 2:
        del s.value
    return s.value, s.size, made, dict(vars(failed)), failed


def tensors_in_objects(x):
    c = Config(2, [])
    c.weight = x * 2
    p = Pair(c.weight, x + 1)
    return p, c, p.first is c.weight


@pytest.mark.parametrize(
    "function",
    [
        operators, construct_and_escape, dataclasses_made, frozen_write, named_tuples, container_subclasses,
        attribute_hooks, descriptors, wrapped, partials, slots, iterator_class, identity_keys, copies,
        copied_collections, instance_dict,
    ],
)  # fmt: skip
def test_instances(function):
    check(function, [(1,), (3,), (4,)])


def test_writes_behind_descriptors():
    check(written_behind_descriptors, [(Shadowing(), n) for n in (1, 3, 4)])


def test_copies_of_set_subclasses_call_the_class():
    check(copied_set_subclass, [(1,)], fullgraph=False)


def test_tensors_in_objects():
    check(tensors_in_objects, [(torch.ones(2),), (torch.ones(3),)])


@pytest.mark.parametrize("value", [1, [2], ["s"], "s", None])
def test_single_dispatch(value):
    check(lambda x: describe(x), [(value,)], fullgraph=False)


def reads(p):
    return p.x + p.y, p


def writes(p):
    p.x += 1
    p.new = [p.x]
    q = p
    q.y = q
    return q.y is p


@pytest.mark.parametrize("function", [reads, writes])
def test_instances_from_outside(function):
    if function is writes:

        def flat(p):
            p.x += 1
            p.new = [p.x]
            return p

        check(flat, [(Point(1, 2),), (Point(5, 6),)])
        return
    check(function, [(Point(1, 2),), (Point(5, 6),), (Point(1.5, 2),)])


def test_outside_containers_of_subclasses():
    def f(s, o):
        s.push(o["a"])
        s.extra = 4
        return s[-1] + len(s)

    check(f, [(Stack([1]), {"a": 2}), (Stack([1, 2]), {"a": 3})])


def test_guards_on_attributes():
    def f(c):
        return c.width * 2 if c.names else c.area

    check(f, [(Config(2),), (Config(3),), (Config(2, ["x"]),), (Config(2, ["y"]),)])


@pytest.mark.filterwarnings("ignore:NotImplemented should not")
@pytest.mark.parametrize("ask", [bool, operator.not_, lambda value: 1 if value else 2])
def test_the_truth_of_not_implemented(ask):
    """A TypeError from CPython 3.14 on."""

    def function(x):
        try:
            return x + ask(NotImplemented)
        except TypeError as error:
            return x * 2, str(error)

    check(function, [(torch.ones(2),)])
