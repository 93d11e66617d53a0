"""Keys of dicts and members of sets whose ``__hash__`` and ``__eq__`` a user wrote."""

from __future__ import annotations

import collections
import reprlib

import pytest
import torch
from differential import attempt, check, run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, compile_frames

X = torch.ones(2)


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def _key(self):
        return (self.x, self.y)

    def __hash__(self):
        return hash(self._key())

    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return self._key() == other._key()

    def __repr__(self):
        return f"P({self.x},{self.y})"


class Mod:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return self.n % 3

    def __eq__(self, o):
        return isinstance(o, Mod) and self.n == o.n

    def __repr__(self):
        return f"M{self.n}"


class Folded(str):
    def __hash__(self):
        return hash(self.lower())

    def __eq__(self, o):
        return self.lower() == o.lower()


class Count:
    def __init__(self):
        self.n = 0

    def __hash__(self):
        self.n += 1
        return 3

    def __eq__(self, o):
        return self is o


class Bad:
    def __init__(self, f=False):
        self.f = f

    def __hash__(self):
        if self.f:
            raise ValueError("no hash")
        return 7

    def __eq__(self, o):
        raise KeyError("no eq")


class Text:
    def __hash__(self):
        return "a"


class Neg:
    def __init__(self, v):
        self.v = v

    def __hash__(self):
        return self.v

    def __eq__(self, o):
        return type(o) is Neg and self.v == o.v


def looked_up(x):
    d = {Point(1, 2): "a", Point(3, 4): x}
    d[Point(1, 2)] = "b"
    d.setdefault(Point(5, 6), []).append(1)
    popped = d.pop(Point(3, 4))
    s = {Point(0, 0), Point(0, 0), Point(1, 1)}
    return (
        d,
        list(d),
        Point(5, 6) in d,
        d.get(Point(9, 9)),
        popped * 2,
        len(s),
        Point(1, 1) in s,
        s == {Point(1, 1), Point(0, 0)},
        [k.x for k in d],
        Point(1, 2) == Point(1, 2),
    )


def colliding(x):
    d = {Mod(i): i for i in range(8)}
    s = {Mod(i) for i in range(7)}
    del d[Mod(4)]
    d[Mod(4)] = 40
    s.discard(Mod(3))
    s.add(Mod(9))
    return (
        list(d.items()),
        sorted(m.n for m in s),
        [m.n for m in s],
        d[Mod(7)],
        Mod(7) in s,
        Mod(1) in d,
        x,
    )


def derived_from_text(x):
    d = {Folded("Ab"): 1}
    d[Folded("aB")] = 2
    d[Folded("c")] = 3
    return list(d.items()), Folded("AB") in d, len(d), x


def counted(x):
    c = Count()
    d = {c: 1}
    d[c] = 2
    d[c]
    return c.n, x


def raising(x):
    out = []
    attempt(out, lambda: {Bad(True): 1})
    attempt(out, lambda: {Bad(): 1, Bad(): 2})
    attempt(out, lambda: Bad() in {Bad(): 1})
    attempt(out, lambda: hash(Text()))
    attempt(out, lambda: {Text()})
    attempt(out, lambda: {Neg(-1): 1}[Neg(-1)])
    attempt(out, lambda: hash(Neg(-1)))
    attempt(out, lambda: hash(Neg(2**70)) == hash(2**70))
    attempt(out, lambda: {Neg(2**70): 5}[Neg(2**70)])
    attempt(out, lambda: hash(Neg(True)))
    return out, x


def key_of_the_caller(p, x):
    d = {p: 1}
    d[Point(p.x, p.y)] = 2
    return d, len(d), x


def changed_key(x):
    p = Point(1, 2)
    d = {p: 1}
    p.x = 5
    return p in d, Point(1, 2) in d, len(d), x


def search(x):  # search over states
    seen, todo, order = {Point(0, 0)}, [Point(0, 0)], []
    while todo:
        p = todo.pop(0)
        order.append((p.x, p.y))
        for q in (Point(p.x + 1, p.y), Point(p.x, p.y + 1)):
            if q.x < 3 and q.y < 3 and q not in seen:
                seen.add(q)
                todo.append(q)
    return order, len(seen), x + len(order)


def dict_of_the_caller(d, x):
    d[Point(1, 2)] = x
    d.update({Point(7, 7): 1})
    return len(d), Point(1, 2) in d


def containers(x):
    counter = collections.Counter([Point(1, 1), Point(1, 1), Point(2, 2)])
    ordered = collections.OrderedDict([(Point(1, 1), 1), (Point(2, 1), 1)])
    ordered.move_to_end(Point(1, 1))
    grouped = collections.defaultdict(list)
    grouped[Point(1, 1)].append(x)
    return counter, ordered, grouped, {(Point(1, 1), 2): 3}[(Point(1, 1), 2)]


def recursive_text(x):
    class Node:
        def __init__(self):
            self.parts = [self]

        @reprlib.recursive_repr()
        def __repr__(self):
            return f"Node({self.parts!r})"

    return repr(Node()), x


class Switched:
    fail = False

    def __hash__(self):
        if self.fail:
            raise ValueError("no hash")
        return 3

    def __eq__(self, other):
        return self is other


def failing_from_now_on(x):
    key = Switched()
    entries = {key: 1}
    out = [entries[key]]
    key.fail = True
    attempt(out, lambda: entries[key])
    attempt(out, lambda: entries.get(key))
    attempt(out, lambda: entries.setdefault(key, 2))
    attempt(out, lambda: entries.pop(key))
    return out, len(entries), x


def test_a_key_that_changed_stays_where_it_is():
    def program(x):
        key = Switched()
        entries = {key: 1}
        key.fail = True
        return entries, x

    entries, _ = compile_frames(program, run_graph, CaptureOptions())(X)
    assert [type(key) for key in entries] == [Switched]
    check(failing_from_now_on, [(X,)], fullgraph=True)


@pytest.mark.parametrize(
    "program",
    [looked_up, colliding, derived_from_text, raising, search, containers, recursive_text],
)
def test_program(program):
    check(program, [(X,)], fullgraph=True)


def test_keys_and_dicts_of_the_caller():
    check(key_of_the_caller, [(Point(1, 2), X), (Point(1, 3), X), (Point(1, 2), X)], fullgraph=True)
    check(dict_of_the_caller, [({}, X), ({3: 4}, X)], fullgraph=True)


def test_keys_that_change_and_methods_with_effects():
    check(changed_key, [(X,)], fullgraph=True)
    check(counted, [(X,)], fullgraph=False)
    with pytest.raises(GraphBreakError, match="key with methods of its own"):
        compile_frames(counted, run_graph, CaptureOptions(fullgraph=True))(X)
