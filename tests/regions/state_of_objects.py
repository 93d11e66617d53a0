"""Steps that change instances, classes, modules, globals, cells, functions."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from .state_programs import program

Tensor = torch.Tensor

# Attributes, descriptors, classes, modules, globals, cells.


class Plain:
    shared = 0

    def __init__(self) -> None:
        self.n = 0
        self.h = torch.zeros(4)
        self.items = [1]

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Slotted:
    __slots__ = ("h", "n")

    def __init__(self) -> None:
        self.n = 0
        self.h = torch.zeros(4)


class Watched:
    def __init__(self) -> None:
        object.__setattr__(self, "log", [])
        self.n = 0

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.log.append(f"del {name}")
        object.__delattr__(self, name)


class WithProperty:
    def __init__(self) -> None:
        self._n = 0
        self.reads = 0

    @property
    def n(self) -> int:
        self.reads += 1
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value


class Stored:
    def __init__(self) -> None:
        self.reads = 0
        self.values: dict[int, Any] = {}

    def __get__(self, instance: Any, owner: Any) -> Any:
        self.reads += 1
        return self.values.get(0, 0) + self.reads

    def __set__(self, instance: Any, value: Any) -> None:
        self.values[0] = value


class Described:
    n = Stored()


class Cached:
    def __init__(self) -> None:
        self.made = 0

    @functools.cached_property
    def n(self) -> int:
        self.made += 1
        return self.made


class Missing:
    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> int:
        if name == "absent":
            self.asked += 1
            return self.asked
        raise AttributeError(name)


def described() -> Any:
    vars(Described)["n"].reads = 0
    vars(Described)["n"].values.clear()
    return Described()


def plain_class() -> Any:
    Plain.shared = 0
    return Plain()


def attributes(s: Any) -> Any:
    return dict(vars(s))


@program(Plain, attributes)
def attribute_added_to(s: Any, y: Tensor, i: int) -> Tensor:
    s.n += 1
    return y * 0.5 + s.n


@program(Plain, attributes)
def attribute_set_to_the_counter(s: Any, y: Tensor, i: int) -> Tensor:
    s.n = i
    return y * 0.5


@program(Plain, attributes)
def attribute_of_a_tensor(s: Any, y: Tensor, i: int) -> Tensor:
    s.h = s.h * 0.5 + y
    return y + s.h


@program(Plain, attributes)
def new_attribute(s: Any, y: Tensor, i: int) -> Tensor:
    s.last = y
    return y * 0.5


@program(Plain, attributes)
def attribute_deleted_and_set(s: Any, y: Tensor, i: int) -> Tensor:
    n = s.n
    del s.n
    s.n = n + 1
    return y * 0.5 + n


@program(Plain, attributes)
def list_in_an_attribute(s: Any, y: Tensor, i: int) -> Tensor:
    s.items.append(i)
    return y * 0.5 + len(s.items)


@program(Plain, attributes)
def called_instance(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s()


@program(Plain, attributes)
def attribute_by_dict(s: Any, y: Tensor, i: int) -> Tensor:
    s.__dict__["n"] += 1
    return y * 0.5 + s.n


@program(Plain, attributes)
def attribute_by_setattr(s: Any, y: Tensor, i: int) -> Tensor:
    setattr(s, f"m{s.n % 3}", s.n)
    s.n += 1
    return y * 0.5 + s.n


@program(Slotted, lambda s: (s.n, s.h))
def slots_of_a_class(s: Any, y: Tensor, i: int) -> Tensor:
    s.n += 1
    s.h = s.h + y
    return y * 0.5 + s.n


@program(Watched, attributes)
def own_setattr(s: Any, y: Tensor, i: int) -> Tensor:
    s.n += 1
    return y * 0.5 + s.n


@program(Watched, attributes)
def own_setattr_unread(s: Any, y: Tensor, i: int) -> Tensor:
    s.n = 3
    return y * 0.5


@program(WithProperty, attributes)
def property_with_state(s: Any, y: Tensor, i: int) -> Tensor:
    s.n = s.n + 2
    return y * 0.5 + s.n


@program(described, lambda s: s.n)
def descriptor_with_state(s: Any, y: Tensor, i: int) -> Tensor:
    s.n = i
    return y * 0.5 + s.n


@program(described, lambda s: s.n)
def descriptor_that_counts_reads(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.n


@program(Cached, attributes)
def cached_property(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.n


@program(Cached, attributes)
def cached_property_dropped(s: Any, y: Tensor, i: int) -> Tensor:
    n = s.n
    del s.n
    return y * 0.5 + n


@program(Missing, attributes)
def getattr_with_state(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.absent


def class_with_state() -> Any:
    return type("Made", (), {"n": 0, "items": []})


@program(plain_class, lambda s: type(s).shared)
def class_attribute(s: Any, y: Tensor, i: int) -> Tensor:
    type(s).shared = (type(s).shared + 1) % 11
    return y * 0.5 + s.shared


@program(class_with_state, lambda s: (s.n, s.items))
def attribute_of_a_made_class(s: Any, y: Tensor, i: int) -> Tensor:
    s.n += 1
    s.items.append(1)
    return y * 0.5 + s.n


@program(lambda: types.ModuleType("made"), lambda s: s.n)
def module_attribute(s: Any, y: Tensor, i: int) -> Tensor:
    s.n = getattr(s, "n", 0) + 1
    return y * 0.5 + s.n


@program(lambda: types.SimpleNamespace(n=0), attributes)
def namespace(s: Any, y: Tensor, i: int) -> Tensor:
    s.n += 1
    return y * 0.5 + s.n


COUNTED = 0
HELD: list[Any] = []


def global_state() -> None:
    global COUNTED
    COUNTED = 0
    HELD.clear()


@program(global_state, lambda s: COUNTED)
def global_number(s: Any, y: Tensor, i: int) -> Tensor:
    global COUNTED
    COUNTED = (COUNTED + 1) % 13
    return y * 0.5 + COUNTED


@program(global_state, lambda s: len(HELD))
def global_list(s: Any, y: Tensor, i: int) -> Tensor:
    HELD.append(1)
    if len(HELD) > 5:
        HELD.clear()
    return y * 0.5 + len(HELD)


def counter_function() -> Any:
    n, total = 0, 0.0

    def count(by: float) -> float:
        nonlocal n, total
        n, total = n + 1, total + by
        return total + n

    return count


@program(counter_function, lambda s: s(1.0))
def nonlocal_number(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s(2.0)


@program(counter_function, lambda s: s(1.0))
def nonlocal_by_the_counter(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s(i)


def keeper_function() -> Any:
    held = torch.zeros(4)

    def keep(y: Tensor) -> Tensor:
        nonlocal held
        held = held * 0.5 + y
        return held

    return keep


@program(keeper_function, lambda s: s(torch.ones(4)))
def nonlocal_tensor(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s(y)


# Functions and functools.


def with_defaults() -> Any:
    def default(by: int, held: list[int] = [], *, named: dict[str, int] = {}) -> int:  # noqa: B006
        held.append(by)
        named[str(len(named) % 3)] = by
        return len(held)

    return default


@program(with_defaults, lambda s: (s(1), list(s.__defaults__[0]), dict(s.__kwdefaults__["named"])))
def mutable_default(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s(2)


def with_default() -> Any:
    def default(by: int = 1) -> int:
        return by

    return default


@program(with_default, lambda s: (s(), s.__defaults__))
def defaults_replaced(s: Any, y: Tensor, i: int) -> Tensor:
    s.__defaults__ = (s() + 1,)
    return y * 0.5 + s()


@program(with_default, lambda s: dict(s.__dict__))
def function_attribute(s: Any, y: Tensor, i: int) -> Tensor:
    s.calls = getattr(s, "calls", 0) + 1
    return y * 0.5 + s.calls


@program(lambda: functools.partial(counter_function(), 2.0), lambda s: s())
def partial_with_state(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s()


@program(lambda: functools.partial(dict, a=1), lambda s: dict(s.keywords))
def keywords_of_a_partial(s: Any, y: Tensor, i: int) -> Tensor:
    s.keywords["a"] += 1
    return y * 0.5 + s()["a"]


@program(lambda: functools.partial(max, [1]), lambda s: s.args)
def argument_of_a_partial(s: Any, y: Tensor, i: int) -> Tensor:
    s.args[0].append(len(s.args[0]) + 1)
    return y * 0.5 + s()


def cached_function() -> Any:
    @functools.lru_cache(maxsize=4)
    def square(k: int) -> int:
        return k * k

    return square


@program(cached_function, lambda s: s.cache_info())
def lru_cache(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s(3)


def dispatching() -> Any:
    @functools.singledispatch
    def kind(value: Any) -> int:
        return 1

    return kind


@program(dispatching, lambda s: (s(1), s("a")))
def singledispatch_registered(s: Any, y: Tensor, i: int) -> Tensor:
    s.register(int, lambda value: value + 2)
    return y * 0.5 + s(1)
