"""``pickle.loads(pickle.dumps(value))``: copies as CPython makes them, and bytes for the code behind."""

import collections
import pickle

import pytest
import torch
from differential import attempt, check


class Settings:
    def __init__(self, size):
        self.size = size
        self.parts = [size, {"of": size}]


class Entries(dict):
    pass


class Doubling(list):
    def append(self, value):
        list.append(self, value * 2)

    def extend(self, values):
        for value in values:
            self.append(value)


class Reduced:
    made = 0

    def __reduce__(self):
        return (Reduced, ())


class Stated:
    def __init__(self):
        self.size = 1

    def __getstate__(self):
        return {"size": self.size + 1}


class Slotted:
    __slots__ = ("size",)


def again(value, *protocol):
    return pickle.loads(pickle.dumps(value, *protocol))


SHARED = [1, "text", (2.5, None, (True, 1j))]
VALUES = {
    "list": lambda: list(SHARED),
    "tuple": lambda: (1, (2, [3])),
    "dict": lambda: {"a": list(SHARED), ("b", 1): {3}},
    "set": lambda: {1, 2, 3},
    "frozenset": lambda: frozenset("ab"),
    "deque": lambda: collections.deque([1, [2]], maxlen=3),
    "ordered": lambda: collections.OrderedDict(a=1, b=[2]),
    "default": lambda: collections.defaultdict(list, {"a": [1]}),
    "constants": lambda: [None, 1.5, b"x", 1 << 80, range(4), ...],
    "by name": lambda: [len, Settings, collections.OrderedDict],
    "derived dict": lambda: Entries(a=1),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("protocol", [(), (0,), (2,), (5,)], ids=str)
def test_copies(kind, protocol):
    make = VALUES[kind]

    def program(x):
        value = make()
        made = again(value, *protocol)
        is_same = kind != "frozenset" and made is value  # of equal constants nobody knows
        return x, made, type(made) is type(value), made == value, is_same

    if kind == "derived dict" and protocol == (0,):
        check(program, [(torch.ones(2),)], fullgraph=False)
    else:
        check(program, [(torch.ones(2),)])


def test_instances():
    def program(x):
        settings = Settings(x.shape[0])
        one, other = again([settings, settings])
        one.parts.append(4)
        return (
            x,
            one is other,
            one is settings,
            vars(one),
            vars(settings),
            one.parts[1] is settings.parts[1],
        )

    check(program, [(torch.ones(n),) for n in (2, 2, 3)])


def test_what_is_one_object_stays_one():
    def program(x):
        shared = [1]
        made = again({"a": shared, "b": (shared, [shared])})
        made["a"].append(2)
        return x, made, shared, made["b"][0] is made["a"]

    check(program, [(torch.ones(2),)])


def test_a_list_that_holds_itself():
    def program(x):
        ring = [1]
        ring.append(ring)
        made = again(ring)
        return x, made[1] is made, made is ring, len(made)

    check(program, [(torch.ones(2),)])


def test_what_is_written_later_is_not_in_it():
    def program(x):
        state = {"steps": [1]}
        data = pickle.dumps(state)
        state["steps"].append(2)
        first, second = pickle.loads(data), pickle.loads(data)
        first["steps"].append(3)
        return x, first, second, state

    check(program, [(torch.ones(2),)])


def test_iterators():
    def program(x):
        numbers = [1, 2, 3, 4]
        iterator = iter(numbers)
        entries = iter({"a": 1, "b": 2}.items())
        first = next(iterator), next(entries)
        moved = [
            list(again(i))
            for i in (iterator, entries, iter((1, 2)), reversed(numbers), iter(range(5)), iter({7}))
        ]
        behind, same = again((iterator, numbers))
        same.append(5)
        return x, first, moved, list(behind), list(iterator), list(entries), numbers

    check(program, [(torch.ones(2),)])


def test_the_bytes_behind_the_graph():
    def program(x):
        return x + 1, pickle.dumps({"sizes": [x.shape[0], Settings]}, protocol=4)

    check(program, [(torch.ones(n),) for n in (2, 3, 4)])


def test_bytes_from_outside():
    def program(x, data):
        value = pickle.loads(data)
        return x, value, len(value)

    check(program, [(torch.ones(2), pickle.dumps(v)) for v in ([1, "a"], {"b": (1.5, None)})])


def test_bytes_from_outside_that_call_or_share():
    shared = [1]

    def program(x, data):
        value = pickle.loads(data)
        return x, [part is value[0] for part in value], str(value)

    values = ([shared, shared], [len, len], collections.deque([shared, 2]))
    check(program, [(torch.ones(2), pickle.dumps(v)) for v in values], fullgraph=False)


LEFT = [
    lambda: again(lambda: 1), lambda: pickle.dumps(1, 99), lambda: pickle.loads(b"bad"),
    lambda: len(pickle.dumps(Settings(1))) > 3, lambda: type(again(Reduced())), lambda: again(Doubling([1])),
    lambda: pickle.dumps(Settings(1)) == pickle.dumps(Settings(1)), lambda: again(Settings(1), 0).size,
    lambda: again(Stated()).size, lambda: again(Slotted(), 0), lambda: again(torch.ones(2)).tolist(),
    lambda: {pickle.dumps([1, [2]]): 3}[pickle.dumps([1, [2]])], lambda: again(iter([1]).__next__),
    lambda: again({Settings: 1}), lambda: pickle.dumps([1], protocol="a"),
]  # fmt: skip


@pytest.mark.parametrize("function", LEFT)
def test_what_is_left_to_python(function):
    def program(x):
        out = []
        attempt(out, function)
        return x, [str(part).split(" at 0x")[0] for part in out]

    check(program, [(torch.ones(2),)], fullgraph=False)
