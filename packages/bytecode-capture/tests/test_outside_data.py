"""Sets, deques, views of dicts, namespaces and generic functions from outside, in the graph."""

import collections
import functools
import types

import pytest
import torch
from differential import check
from weft_bytecode_capture import capture, compile_frames


def double(x):
    return x * 2


def over_sets(x, numbers, functions):
    seen = []
    for number in numbers:
        x = x + number
        seen.append(number)
    for function in functions:
        x = function(x)
    return x, seen, sorted(numbers), len(functions), double in functions


def changed_sets(x, numbers):
    for number in list(numbers):
        x = x * number
    numbers.add(17)
    numbers.discard(2)
    return x, 17 in numbers, len(numbers)


def over_deques(x, queue):
    total = sum(queue) + queue[0] + queue[-1]
    queue.append(x.shape[0])
    queue.appendleft(7)
    return x + total, list(queue), queue.maxlen, queue.popleft(), len(queue), 2 in queue


def reads_nothing(x, queue):
    return x + len(queue), queue


def over_views(x, keys, values, items):
    for key, value in items:
        x = x + len(key) * value
    return x, list(keys), max(values), "b" in keys, keys & {"a", "z"}, len(items)


def namespaces(x, given):
    made = types.SimpleNamespace(a=x, b=2)
    made.c = made.a * made.b
    given.seen = x + given.k
    empty = types.SimpleNamespace()
    del made.b
    return made, given.k, made == made, made == empty, vars(made)["c"], empty, hasattr(made, "b")


class Settings(types.SimpleNamespace):
    def scaled(self, x):
        return x * self.scale


def namespace_subclasses(x):
    settings = Settings(scale=3)
    settings.scale += 1
    return settings.scaled(x), settings, settings == Settings(scale=4)


@functools.singledispatch
def size(value):
    return 0


@size.register
def _(value: int):
    return value


@size.register(list)
@size.register(tuple)
def _(value):
    return sum(size(part) for part in value)


class Sizes:
    @functools.singledispatchmethod
    def of(self, value):
        return "unknown"

    @of.register
    def _(self, value: torch.Tensor):
        return value.sum() + 1

    @of.register(str)
    def _(self, value):
        return type(self), value


def generic(x, sizes):
    return size([1, (2, 3), "a"]), size(True), sizes.of(x), sizes.of("b"), sizes.of(None)


def function_methods(x):
    bound = double.__get__(x)
    return bound(), double.__get__(None, torch.Tensor)(x), double.__call__(x)


def functions_as_keys(x, table):
    names = {torch.relu: "relu", double: "double", len: "len"}
    return names[double], names.get(torch.relu), names.get(torch.sin), table[double] + x, names


X = torch.tensor([1.0, -2.0])
TABLE = {"a": 1, "b": 2, "ccc": 3}


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (over_sets, [(X, {3, 1, 70}, {double, torch.relu}), (X, frozenset((5, 0)), {double})]),
        (over_sets, [(X, numbers, set()) for numbers in ({8, 0}, {0, 8}, {"a", "b"} and {1.5})]),
        (changed_sets, [(X, {1, 2, 3}), (X, {5})]),
        (over_deques, [(X, collections.deque([1, 2, 3], length)) for length in (None, 3, 4)]),
        (reads_nothing, [(X, collections.deque()), (X, collections.deque("ab"))]),
        (namespaces, [(X, types.SimpleNamespace(k=2)), (X, types.SimpleNamespace(k=3.5, j=1))]),
        (namespace_subclasses, [(X,)]),
        (generic, [(X, Sizes()), (X * 2, Sizes())]),
        (function_methods, [(X,)]),
        (functions_as_keys, [(X, {double: 1, torch.sin: 2})]),
    ],
)
def test_in_one_graph(function, calls):
    check(function, calls)


def test_views_in_one_graph():
    views = TABLE.keys(), TABLE.values(), TABLE.items()
    plain = over_views(X, *views)
    compiled = compile_frames(over_views, lambda graph, inputs: graph.forward)
    for _ in range(2):
        found = compiled(X, *views)
        assert found[1:] == plain[1:]
        assert torch.equal(found[0], plain[0])
    assert len(capture(over_views)(X, *views).breaks) == 0
    other = {"q": 9}
    found = compiled(X, other.keys(), other.values(), other.items())
    assert found[1:] == over_views(X, other.keys(), other.values(), other.items())[1:]


def test_other_orders_and_registrations_are_captured_anew():
    def order(x, numbers):
        return x, list(numbers)

    compiled = compile_frames(order, lambda graph, inputs: graph.forward)
    first, second = {0, 8}, {8}
    second.add(0)
    for numbers in (first, second, first):
        assert compiled(X, numbers)[1] == list(numbers)

    @functools.singledispatch
    def named(value):
        return "any"

    def f(x):
        return named(3), x + 1

    compiled = compile_frames(f, lambda graph, inputs: graph.forward)
    assert compiled(X)[0] == "any"
    named.register(int, lambda value: "int")
    assert compiled(X)[0] == "int"
