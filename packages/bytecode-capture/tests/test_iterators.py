"""Iterators in the middle of their elements live on over a graph break; groups of ``groupby``."""

import collections
import itertools
import operator
import sys

import pytest
import torch
from differential import check
from weft_bytecode_capture import capture, disable


class Indexed:
    """Iterated by position."""

    def __getitem__(self, position):
        if position > 3:
            raise IndexError
        return position * 10


def countdown():
    left = [3, 2, 1, 0, 5]
    return lambda: left.pop(0)


def negative(value):
    return value < 0


def small(value):
    return value < 3


MAKERS = {
    "chain": lambda: itertools.chain([1, 2], "ab", (3,)),
    "chain_from_iterable": lambda: itertools.chain.from_iterable([[1], [2, 3]]),
    "islice": lambda: itertools.islice([1, 2, 3, 4, 5], 4),
    "islice_steps": lambda: itertools.islice(iter("abcdefgh"), 1, 7, 2),
    "islice_endless": lambda: itertools.islice(itertools.islice(itertools.count(), 9), 2, None, 3),
    "islice_none": lambda: itertools.islice([1, 2, 3], 2, 1),
    "cycle": lambda: itertools.islice(itertools.cycle("abc"), 7),
    "accumulate": lambda: itertools.accumulate([1, 2, 3]),
    "accumulate_from": lambda: itertools.accumulate([1, 2], lambda a, b: a * b, initial=4),
    "accumulate_none": lambda: itertools.accumulate([1, 2, 3], lambda a, b: None),
    "zip_longest": lambda: itertools.zip_longest([1], "abc", fillvalue=0),
    "takewhile": lambda: itertools.takewhile(small, [1, 2, 3, 1]),
    "dropwhile": lambda: itertools.dropwhile(small, [1, 2, 3, 1, 2]),
    "pairwise": lambda: itertools.pairwise("abcd"),
    "product": lambda: itertools.product([1, 2], "ab"),
    "product_repeat": lambda: itertools.product([1, 2], repeat=2),
    "permutations": lambda: itertools.permutations("abc", 2),
    "combinations": lambda: itertools.combinations("abcd", 3),
    "repetitions": lambda: itertools.combinations_with_replacement("ab", 2),
    "strict_zip": lambda: zip([1, 2, 3], "abc", strict=True),
    "sentinel": lambda: iter(countdown(), 0),
    "indexed": lambda: iter(Indexed()),
    "deque": lambda: iter(collections.deque([1, 2, 3])),
}
if sys.version_info >= (3, 14):
    MAKERS["strict_map"] = lambda: map(operator.mul, [1, 2, 3], (4, 5, 6), strict=True)


def taken_apart(x, maker, taken):
    """Some elements before the break, the others behind it."""
    made = MAKERS[maker]()
    first = [next(made, "end") for _ in range(taken)]
    seen = []
    note(seen, x + 1)
    return first, type(made), list(made), next(made, "end"), x + len(first)


@disable
def note(seen, value):
    seen.append(value)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("taken", [0, 1, 2, 4, 9])
def test_goes_on_behind_a_break(maker, taken):
    check(taken_apart, [(torch.ones(2), maker, taken)], fullgraph=False)
    result = capture(taken_apart)(torch.ones(2), maker, taken)
    assert result.breaks[0].kind == "call of a disabled function"  # none where the iterator is made


def test_exactly_as_many_elements_are_taken():
    def f(x):
        left = iter([1, 2, 3, 4, 5, 6, 7])
        counts = []
        for limits in ((2, 1), (0,), (1, 3, 5)):
            list(itertools.islice(left, *limits))
            counts.append(next(left, None))
        return x + 1, counts

    check(f, [(torch.ones(2),)])


def groups(x):
    found = [(key, list(group)) for key, group in itertools.groupby([1, 1, 2, 3, 3, 1])]
    by_size = {
        key: [*group]
        for key, group in itertools.groupby([3, 4, 12, 17, 101], key=lambda v: len(str(v)))
    }
    kept = [(key, group) for key, group in itertools.groupby("aabbc")]
    emptied = [(key, list(group)) for key, group in kept]
    partial = []
    for key, group in itertools.groupby("aaabb", None):
        partial.append((key, next(group)))
    return x + 1, found, by_size, emptied, partial, list(itertools.groupby([]))


def groups_of_tensors(x):
    total = x
    for size, group in itertools.groupby([x, x + 1, x[:1]], lambda t: t.shape[0]):
        for member in group:
            total = total + member.sum() * size
    return total


def test_groups():
    check(groups, [(torch.ones(2),)])
    check(groups_of_tensors, [(torch.ones(2),), (torch.ones(3),)])


def written_ahead(x, items):
    for item in reversed(items):
        items[:1] = [item + 1]
        if item == 2:
            items[1] = 7
    return x * len(items), items


def shortened(x, items):
    backwards = reversed(items)
    first = next(backwards)
    del items[1:]
    return x * first, list(backwards), list(backwards), items


def broken_off(x, items):
    backwards = reversed(items)
    next(backwards)
    noted(items)
    items[0] = 9
    return x * 2, list(backwards), type(backwards).__name__, items


@disable
def noted(items):
    items[1] = 5


@pytest.mark.parametrize("function", [written_ahead, shortened, broken_off])
def test_reversed_lists_see_changes(function):
    calls = [(torch.ones(2), [3, 1, 2]), (torch.ones(2), [1, 4, 5, 2])]
    check(function, calls, fullgraph=function is not broken_off)


LAYERS = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(4)])


def every_layer(x, layers):
    x = x * 2
    for layer in layers:
        x = layer(x)
        noted([0, 0])
    return x


def first_layers(x, layers):
    x = x * 2
    for number, layer in enumerate(layers[:3]):
        x = layer(x) * number
        noted([0, 0])
    return x


def one_layer_and_the_rest(x, layers):
    waiting = iter(layers)
    x = next(waiting)(x)
    noted([0, 0])
    return x, list(waiting), next(waiting, None), type(waiting).__name__


def all_layers_and_none(x, layers):
    waiting = iter(layers)
    for layer in waiting:
        x = layer(x)
    noted([0, 0])
    return x, next(waiting, None)


def one_layer_more(x, layers):
    own = torch.nn.ModuleList(layers)
    waiting = iter(own)
    x = next(waiting)(x)
    own.append(torch.nn.ReLU())
    noted([0, 0])
    try:
        return x, len(list(waiting))
    except RuntimeError as error:
        return x, str(error)


def one_layer_replaced(x, layers):
    kept, waiting = layers[1], iter(layers)
    x = next(waiting)(x)
    layers[1] = torch.nn.ReLU()
    noted([0, 0])
    x = next(waiting)(x)
    layers[1] = kept
    return x


@pytest.mark.parametrize(
    ("function", "graphs"),
    [
        (every_layer, 2),
        (first_layers, 2),
        (one_layer_and_the_rest, 1),
        (all_layers_and_none, 1),
        (one_layer_more, None),
        (one_layer_replaced, None),
    ],
)
def test_modules_are_iterated_over_breaks(function, graphs):
    """What comes before the loop is in one graph with the first call; later modules share one."""
    x = torch.ones(3, 2)
    check(function, [(x, LAYERS), (x + 1, LAYERS)], fullgraph=False)
    if graphs is not None:
        assert len(capture(function)(x, LAYERS).graphs) == graphs


def into_two(make):
    def function(x):
        try:
            first, _second = make(x)
        except (TypeError, ValueError) as error:
            return x + 1, str(error)
        return x, first

    return function


@pytest.mark.parametrize(
    "make",
    [
        *(lambda x: (x, 1, 2), lambda x: [x] * 4, lambda x: [x], lambda x: {1: x, 2: 3, 4: 5}),
        *(
            lambda x: (n for n in range(5)),
            lambda x: range(3),
            lambda x: "abc",
            lambda x: {1, 2, 3},
        ),
        *(
            lambda x: x.new_zeros(3),
            lambda x: x.shape,
            lambda x: (1, 2, 3),
            lambda x: iter([1, 2, 3]),
        ),
        lambda x: list(map(lambda a, b: a * b, [1, 2], [x], strict=True)),
        lambda x: list(map(lambda a, b, c: a * b, [1], [x], [1, 2], strict=True)),
        lambda x: list(map(lambda a, b, c: a * b, [1, 2], [x, x], [1, 2], strict=True)),
        lambda x: list(map(lambda a, b: a * b, [1, 2], [x], strict=False)),
    ],
)
def test_lengths_that_do_not_fit(make):
    check(into_two(make), [(torch.ones(2),)])
