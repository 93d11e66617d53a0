"""Instances from outside of builtin containers' subclasses that answer reads with methods of their own."""

import collections

import pytest
import torch
from differential import check


class Instantiating(collections.OrderedDict):
    """As the table of activations in `transformers`: reading makes what the entry describes."""

    def __getitem__(self, key):
        content = super().__getitem__(key)
        kind, keywords = content if isinstance(content, tuple) else (content, {})
        return kind(**keywords)


class Output(collections.OrderedDict):
    """As the outputs of `transformers`' models: items by name, attribute or position."""

    def __init__(self, **fields):
        super().__init__(fields)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict(self.items())[key]
        return self.to_tuple()[key]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


class Offset(list):
    def __getitem__(self, index):
        return super().__getitem__(index - 1)

    def __len__(self):
        return 100 + super().__len__()

    def __iter__(self):
        return (item * 10 for item in super().__iter__())


class Backwards(tuple):
    def __iter__(self):
        return iter(tuple.__getitem__(self, slice(None, None, -1)))

    def __contains__(self, item):
        return item == "anything" or tuple.__contains__(self, item)


class Lower(dict):
    def __getitem__(self, key):
        return super().__getitem__(key.lower())

    def __contains__(self, key):
        return super().__contains__(key.lower())

    def keys(self):
        return [key.upper() for key in super().__iter__()]

    def __len__(self):
        return -1 + super().__len__()


class Hiding(dict):
    """What it says of itself is not what it holds."""

    def __iter__(self):
        return iter(["a"])

    def keys(self):
        return ["a"]


class HidingInOrder(collections.OrderedDict):
    __iter__ = Hiding.__iter__
    keys = Hiding.keys


class Scaling(Hiding):
    def __getitem__(self, key):
        return super().__getitem__(key) * 10

    def values(self):
        return [5]


class Halving(torch.nn.Module):
    def __init__(self, by=2):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x / self.by


TABLE = Instantiating(relu=torch.nn.ReLU, half=(Halving, {"by": 4}))


def reads_a_table(x, name):
    kind = TABLE[name]
    return kind.forward(x) if isinstance(kind, Halving) else torch.relu(x), name in TABLE


def reads_an_output(x, output):
    x = x + output[0] * output["second"] + output.first
    first, *rest = output.to_tuple()
    return x, first, rest, list(output), len(output), output.get("third"), output[1:]


def writes_an_output(x, output):
    output["second"] = x * 3
    output["new"] = x
    return output[1] + output.new, output["second"], list(output.keys())


def reads_a_list(x, items):
    return x * items[1], len(items), list(items), [item + 1 for item in items], 2 in items


def writes_a_list(x, items):
    items.append(x.shape[0])
    items[0] = 7
    return x + items[1], len(items), items


def reads_a_tuple(x, items):
    first, *_ = items
    return x * first, list(items), "anything" in items, 5 in items, items[0], len(items)


def reads_a_dict(x, items):
    return (
        x * items["A"],
        "B" in items,
        items.keys(),
        len(items),
        list(items),
        items.get("A"),
        sorted(items.items()),
    )


def copies_a_dict(x, items):
    return x * 2, dict(items), {**items}


READINGS_OF_DICTS = {
    "contains": lambda x, d: ("b" in d, "a" in d, x * 1),
    "get": lambda x, d: (d["b"] * x, d.get("b"), dict.get(d, "b"), dict.__getitem__(d, "b")),
    "length": lambda x, d: (x * len(d), bool(d)),
    "copied": lambda x, d: (x * 1, dict(d), {**d}, (lambda **k: k)(**d), {}.update(d)),
    "equal": lambda x, d: (x * 1, [d == p or p == d for p in ({"a": 1, "b": 2}, {"a": 1})]),
    "views": lambda x, d: (x * 1, list(d), [*d.items()], [*d.values()], list(reversed(d))),
    "dict's own": lambda x, d: (x * 1, list(dict.items(d)), list(dict.keys(d))),
    "copy": lambda x, d: (x * 1, list(dict.items(d.copy()))),
    "union": lambda x, d: (x * 1, {"q": 0} | d, d | {"q": 0}),
    "union in place": lambda x, d: (into := {"q": 0}, into.__ior__(d), x * 1),
    "written": lambda x, d: (d.__setitem__("n", x), d.pop("a"), list(dict.items(d)), x * 1),
}


def joins_in_place(x, d):
    into = {"q": 0}
    into |= d
    return x * 1, into


READINGS_OF_DICTS["joined"] = joins_in_place


@pytest.mark.parametrize("kind", [Hiding, HidingInOrder, Scaling], ids=lambda k: k.__name__)
@pytest.mark.parametrize("reading", READINGS_OF_DICTS)
def test_what_a_dict_holds_and_what_it_says(kind, reading):
    calls = [(x(), kind(a=1, b=2)), (x(), kind(a=1, b=3))]
    check(READINGS_OF_DICTS[reading], calls, fullgraph=False)


def writes_a_dict(x, items):
    items["c"] = items["A"] + 1
    items.pop("b")
    return x + items["C"], items


def x(n=3):
    return torch.arange(float(n))


CASES = {
    "a table": (reads_a_table, lambda: [(x(), "relu"), (x(), "half"), (x(4), "relu")]),
    "an output": (
        reads_an_output,
        lambda: [
            (x(), Output(first=x(), second=2.0)),
            (x(), Output(first=x() + 1, second=2.0)),
            (x(), Output(first=x(), second=3.0, third=None)),
            (x(), Output(second=3.0, first=x())),
        ],
    ),
    "a written output": (
        writes_an_output,
        lambda: [(x(), Output(first=1, second=x())), (x(), Output(first=1, second=x() * 2))],
    ),
    "a list": (reads_a_list, lambda: [(x(), Offset([1, 2])), (x(), Offset([5, 2, 3]))]),
    "a written list": (writes_a_list, lambda: [(x(), Offset([1, 2])), (x(), Offset([4, 2]))]),
    "a tuple": (reads_a_tuple, lambda: [(x(), Backwards((1, 2))), (x(), Backwards((5, 3)))]),
    "a dict": (
        reads_a_dict,
        lambda: [(x(), Lower(a=1, b=2)), (x(), Lower(a=4, b=2)), (x(), Lower(a=4, c=2))],
    ),
    "a copied dict": (
        copies_a_dict,
        lambda: [(x(), Lower(a=1, b=2)), (x(), Lower(a=4, b=2)), (x(), Lower(a=4, c=2))],
    ),
    "a written dict": (
        writes_a_dict,
        lambda: [(x(), Lower(a=1, b=2)), (x(), Lower(a=4, b=2)), (x(), Lower(b=1, a=2))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reads_as_its_class_says(name):
    function, calls = CASES[name]
    check(function, calls())
