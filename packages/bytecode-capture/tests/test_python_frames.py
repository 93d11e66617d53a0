"""Functions without tensors, captured: results, effects and exceptions are CPython's."""

from __future__ import annotations

import copy
import enum
import math
import time

import pytest
from weft_bytecode_capture import capture


class Color(enum.Enum):
    RED = 1


class Base:
    scale = 3

    def __init__(self, x):
        self.x = x

    @property
    def double(self):
        return self.x * 2

    def add(self, y, *, z=1):
        return self.x + y + z * self.scale


class Derived(Base):
    def __init__(self, x):
        super().__init__(x + 1)
        self.name = "derived"

    def add(self, y, *, z=1):
        return super().add(y, z=z) * 10


KNOWN = Base(4)


def arithmetic(x, y):
    return x * y + 1


def loops(n):
    total = 0
    for i in range(n):
        if i % 2:
            continue
        total += i
    return total, [i * i for i in range(n)], {i: str(i) for i in range(n)}


def instances(x):
    made = Derived(x)
    return made.add(2), made.double, made.name, KNOWN.add(1), isinstance(made, Base), type(made)


def handlers(x):
    try:
        raise ValueError("bad", x)
    except ValueError as error:
        result = error.args
    finally:
        last = 3
    return result, last


def containers(values):
    values.append(3)
    values.sort(reverse=True)
    table = dict(a=1, b=2)  # noqa: C408
    return values, table, sorted(table.items()), max(values), sum(values), len(values)


def formats(x):
    return [x, Color.RED, Color.RED.value, f"{x:>4}|{x!r}", "%s-%d" % ("a", x)]  # noqa: UP031


def iterators(*args, **kwargs):
    mapped = [*map(lambda v: v + 1, args)]  # noqa: C417
    return (
        list(zip(args, kwargs, strict=False)),
        list(enumerate(args)),
        mapped,
        list(reversed(args)),
    )


def numbers(x):
    return math.sqrt(x), max(1, x), min([3, x]), abs(-x), any(v > 2 for v in [1, x]), all([1, x])


def generate(n):
    for i in range(n):  # noqa: UP028
        yield i


def generators(n):
    return list(generate(n)), sum(generate(n))


def divides(table):
    return table["a"] / 0


def mutates(table):
    table["b"] = 2
    del table["a"]
    return table


def breaks(x):
    values = [x]
    time.sleep(0)
    values.append(x + 1)
    return values


CASES = [
    (arithmetic, (2, 3)),
    (arithmetic, ("a", 2)),
    (loops, (7,)),
    (instances, (1,)),
    (handlers, (1,)),
    (containers, ([1, 2],)),
    (formats, (3,)),
    (iterators, (1, 2)),
    (numbers, (4,)),
    (generators, (4,)),
    (divides, ({"a": 1},)),
    (mutates, ({"a": 1},)),
    (breaks, (5,)),
]


def outcome(function, arguments):
    try:
        return function(*arguments), arguments
    except Exception as error:
        return type(error), error.args, arguments


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_captured_function_behaves_as_in_cpython(function, arguments):
    expected = outcome(function, copy.deepcopy(arguments))
    captured = capture(function)
    for _ in range(2):  # captured, then run again
        found = outcome(lambda *args: captured(*args).result, copy.deepcopy(arguments))
        assert found == expected


def test_function_made_in_the_frame_outlives_it():
    def make(x):
        def inner(y, k=2):
            return x + y * k

        return inner

    assert capture(make)(3).result(4) == make(3)(4)


def test_attribute_written_is_replayed():
    def write(x):
        KNOWN.x = x
        return KNOWN.double

    assert capture(write)(7).result == 14
    assert KNOWN.x == 7
    KNOWN.x = 4


def test_break_is_reported_at_its_place():
    result = capture(breaks)(1)
    assert [found.kind for found in result.breaks] == ["call of a builtin function"]
