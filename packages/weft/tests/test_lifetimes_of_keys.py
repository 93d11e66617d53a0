"""Keys of dicts and members of sets that a compiled function has read die where they die in eager."""

from __future__ import annotations

import collections
import contextlib
import enum
import gc
import time
import types
import weakref

import pytest
import torch
import weft


class Plain:
    pass


KINDS = {
    "tensor": lambda: torch.rand(4),
    "parameter": lambda: torch.nn.Parameter(torch.rand(4)),
    "module": lambda: torch.nn.Linear(4, 4),
    "object": Plain,
    "function": lambda: lambda x: x + 1,
}


def added(values, x):
    for value in values.values():
        x = x + value
    return x


def looked_up_in_turn(values, x):
    for key in values:
        x = x * values[key]
    return x


def behind_a_break(values, x):
    y = added(values, x)
    time.sleep(0)
    return looked_up_in_turn(values, y)


def with_an_entry(values, x):
    values["new"] = 1.5
    return added(values, x)


def copied(values, x):
    copy = dict(values)
    copy["new"] = 1.5
    return added(copy, x)


def written(key, x):
    values = {key: 2.0}
    values[key] = values[key] + 1
    return x * values[key]


DICTS = {
    "values": (added, lambda key: {key: 2}),
    "tensors": (added, lambda key: {key: torch.ones(4)}),
    "among names": (added, lambda key: {"a": 1, key: 2, "b": 3}),
    "keys": (looked_up_in_turn, lambda key: {key: 2}),
    "ordered": (added, lambda key: collections.OrderedDict({key: 2})),
    "with a default": (added, lambda key: collections.defaultdict(int, {key: 2})),
    "proxy": (added, lambda key: types.MappingProxyType({key: 2})),
    "inside": (lambda values, x: added(values["a"], x), lambda key: {"a": {key: 2}}),
    "of an object": (
        lambda values, x: added(values.a, x), lambda key: types.SimpleNamespace(a={key: 2})
    ),
    "tuples": (added, lambda key: {(key, 1): 2, ("a", key): 3}),
    "tuples in tuples": (added, lambda key: {((key, 0), 1): 2}),
    "tuples, looked up": (looked_up_in_turn, lambda key: {(key, 1): 2}),
    "frozen sets": (added, lambda key: {frozenset([key, 1]): 2}),
    "break": (behind_a_break, lambda key: {key: 2}),
    "entry": (with_an_entry, lambda key: {key: 2}),
    "copy": (copied, lambda key: {key: 2}),
    "length": (lambda values, x: x * len(values), lambda key: {key: 2}),
}  # fmt: skip
LOOKUPS = {
    "item": (lambda p, x: x * p[0][p[1]], lambda key: ({key: 2}, key)),
    "get": (lambda p, x: x * p[0].get(p[1], 5), lambda key: ({key: 2}, key)),
    "tuple": (lambda p, x: x * p[0][p[1], 1], lambda key: ({(key, 1): 2}, key)),
    "in": (lambda p, x: x + (p[1] in p[0]), lambda key: ({key: 2}, key)),
    "not in": (lambda p, x: x + (p[1] in p[0]), lambda key: ({1: 2}, key)),
    "own dict": (lambda p, x: written(p[0], x), lambda key: (key,)),
    "set": (lambda p, x: x + (p[1] in p[0]), lambda key: ({key, 2}, key)),
    "set's members": (lambda p, x: x + len(list(p)), lambda key: {key}),
    "frozen set's": (lambda p, x: x + len(list(p)), lambda key: frozenset([key])),
    "set's tuples": (lambda p, x: x + len(list(p)), lambda key: {(key, 1)}),
}  # fmt: skip


def lives_after(program, function, make_key, make, calls):
    """What each of ``calls`` gives, and which of the keys so far live when it has returned."""
    keys = []
    results = []
    for number in range(calls):
        key = make_key()
        keys.append(weakref.ref(key))
        with torch.no_grad():
            result = program(make(key), torch.arange(4.0) + number)
        del key
        results.append((result, [reference() is not None for reference in keys]))
    return results


@contextlib.contextmanager
def no_collections():
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compare(function, make_key, make, *, calls=3):
    with no_collections():
        expected = lives_after(function, function, make_key, make, calls)
        compiled = weft.compile(function, backend="eager")
        found = lives_after(compiled, function, make_key, make, calls)
    for (value, alive), (wanted, alive_in_eager) in zip(found, expected, strict=True):
        torch.testing.assert_close(value, wanted)
        assert alive == alive_in_eager
    assert not any(expected[-1][1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", DICTS)
def test_keys_of_a_dict_that_a_call_is_given(way, kind):
    function, make = DICTS[way]
    compare(function, KINDS[kind], make)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", LOOKUPS)
def test_keys_that_are_looked_for(way, kind):
    function, make = LOOKUPS[way]
    compare(function, KINDS[kind], make)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("container", [dict, set])
def test_a_container_that_lives_on_and_is_emptied(container, kind):
    held = container()
    compiled = weft.compile(lambda c, x: x * len(list(c)), backend="eager")
    x = torch.arange(4.0)
    with no_collections():
        for _ in range(3):
            key = KINDS[kind]()
            if isinstance(held, dict):
                held[key] = 2
            else:
                held.add(key)
            reference = weakref.ref(key)
            del key
            torch.testing.assert_close(compiled(held, x), x)
            held.clear()
            assert reference() is None


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_live_on_keep_their_code(kind):
    """A dead key's code goes alone; equal keys of another dict are served by what there is."""
    compiled = weft.compile(added, backend="eager")
    x = torch.arange(4.0)
    kept, dead = KINDS[kind](), KINDS[kind]()
    compiled({kept: 2}, x)
    compiled({dead: 2}, x)
    del dead
    with weft.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled({kept: 2}, x), x + 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrap", [lambda key: key, lambda key: (key, 1), lambda key: frozenset([key])]
)
def test_other_keys_are_told_apart(kind, wrap):
    """By order, by identity, and by what a tuple or set holds beside."""

    def function(values, key, x):
        for place, value in enumerate(values.values()):
            x = x * (place + 2) + value
        return x + values.get(key, 7)

    one, other = KINDS[kind](), KINDS[kind]()
    compiled = weft.compile(function, backend="eager")
    x = torch.arange(4.0)
    for first, second, sought in (
        (one, other, one), (other, one, one), (one, other, other), (one, Plain(), other), (other, one, one),
    ):  # fmt: skip
        values = {wrap(first): 1, wrap(second): 10}
        key = wrap(sought)
        torch.testing.assert_close(compiled(values, key, x), function(values, key, x))


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: {weakref.ref(Colour): 2, Plain: 3},
        lambda: {Colour.RED: 2, torch.float32: 3},
        lambda: {(Colour.RED, 1): 2, (torch.float32, None): 3},
        lambda: {float("nan"): 2, 0.0: 3},
        lambda: {len: 2, torch.sin: 3, Plain: 4},
    ],
)
def test_keys_that_are_constants_or_references(make):
    compiled = weft.compile(added, backend="eager")
    x = torch.arange(4.0)
    for _ in range(3):
        torch.testing.assert_close(compiled(make(), x), added(make(), x))


def test_a_tuple_that_is_a_key_is_returned_itself():
    key = Plain()
    values = {(key, 1): 2, "a": 3}
    found = weft.compile(lambda values, x: (x + 1, list(values)), backend="eager")(
        values, torch.ones(2)
    )[1]
    assert [a is b for a, b in zip(found, values, strict=True)] == [True, True]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_state_keyed_by_parameters(optimizer):
    """An optimizer's step by hand, over its state: the parameters die with the model."""

    def step(state, parameters, x):
        for parameter in parameters:
            parameter.mul_(0.5).add_(state[parameter])
        return x + sum(len(key.shape) for key in state)

    compiled = weft.compile(step, backend="eager")
    references = []
    for _ in range(3):
        module = torch.nn.Linear(3, 2)
        values = list(module.parameters())
        state = {value: torch.ones_like(value) for value in values}
        expected = [value.detach() * 0.5 + 1 for value in values]
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(state, values, torch.ones(2)), torch.full((2,), 4.0)
            )
        for value, wanted in zip(values, expected, strict=True):
            torch.testing.assert_close(value.detach(), wanted)
        references += [weakref.ref(value) for value in values]
        del module, values, state, value, wanted, expected
        gc.collect()
        assert [reference() for reference in references if reference() is not None] == []
