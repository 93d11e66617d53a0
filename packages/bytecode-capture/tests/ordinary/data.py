"""Programs about data: records, registries, parsers, sorting, text."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import re
import string
import sys
import types
from typing import NamedTuple

import torch

from . import Programs, X, Y

PROGRAMS = Programs()


@dataclasses.dataclass
class Layer:
    name: str
    scale: float = 1.0
    tags: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.tags.append(self.name.upper())

    def apply(self, x):
        return x * self.scale


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0

    @classmethod
    def parse(cls, text):
        return cls(*map(int, text.split(".")))


@PROGRAMS((X, ("a", "b")), (X, ("c",)), (Y, ()))
def layers_by_name(x, names):
    layers = {name: Layer(name, index + 0.5) for index, name in enumerate(names)}
    for layer in layers.values():
        x = layer.apply(x)
        layer.tags += [len(layers)]
    return x, layers, [dataclasses.asdict(layer) for layer in layers.values()]


@PROGRAMS((X, ["1.2", "1.10", "0.9"]), (X, ["2.0", "1.9"]))
def newest_version(x, texts):
    versions = sorted(map(Version.parse, texts), reverse=True)
    newest = dataclasses.replace(versions[0], minor=versions[0].minor + 1)
    return x + newest.major, versions, newest > versions[0], hash(newest) == hash(versions[0])


REGISTRY = {}


def register(name, *aliases, **defaults):
    def decorate(function):
        for key in (name, *aliases):
            REGISTRY[key] = functools.partial(function, **defaults)
        return function

    return decorate


@register("scale", "mul", factor=2.0)
def scale(x, factor):
    return x * factor


@register("shift", offset=1.0)
def shift(x, offset):
    return x + offset


@PROGRAMS(
    (X, "scale,shift"), (X, "mul:factor=3"), (X, "shift:offset=-2,scale:factor=0.5"), (Y, "none")
)
def run_pipeline(x, text):
    for step in text.split(","):
        name, _, rest = step.partition(":")
        arguments = dict(pair.split("=") for pair in rest.split(";") if pair)
        try:
            function = REGISTRY[name]
        except KeyError as error:
            return x, f"unknown step {error}"
        x = function(x, **{key: float(value) for key, value in arguments.items()})
    return x, sorted(REGISTRY)


@PROGRAMS(
    (X, "a=1\nb = x y\n# no\n[two]\nc=3.5"), (X, "[one]\nk=v"), (X, "broken"),
    one_graph=sys.version_info < (3, 12),  # there the expression is a generator alive at a break
)  # fmt: skip
def parse_settings(x, text):
    sections = collections.defaultdict(dict)
    current = "main"
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line[0] == "[" and line[-1] == "]":
            current = line[1:-1]
            continue
        key, separator, value = (part.strip() for part in line.partition("="))
        if not separator:
            return x - number, f"line {number}: {line!r}"
        sections[current][key] = float(value) if value.replace(".", "", 1).isdigit() else value
    total = sum(v for s in sections.values() for v in s.values() if isinstance(v, float))
    return x + total, {name: dict(section) for name, section in sections.items()}


@PROGRAMS((X, {"a": [1, {"b": (2, [3])}], "c": 4}), (X, [[], {}, ()]), (X, 7))
def sum_nested(x, tree):
    def walk(node, path=()):
        match node:
            case dict():
                for key, value in node.items():
                    yield from walk(value, (*path, key))
            case list() | tuple():
                for index, value in enumerate(node):
                    yield from walk(value, (*path, index))
            case _:
                yield path, node

    leaves = dict(walk(tree))
    return x * sum(leaves.values()), leaves


@PROGRAMS((X, [("b", 2), ("a", 2), ("c", 1)]), (Y, [("z", 0)]))
def sort_by_keys(x, pairs):
    by_number = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
    pairs.sort(key=lambda pair: pair[0], reverse=True)
    groups = {k: [n for n, _ in g] for k, g in itertools.groupby(by_number, key=lambda p: p[1])}
    return x + by_number[0][1], by_number, groups, min(pairs, key=lambda pair: pair[1])


class Colour(enum.IntEnum):
    RED = 1
    GREEN = 2

    @property
    def weight(self):
        return self.value / 2

    @classmethod
    def of(cls, text):
        return cls[text.upper()]


@PROGRAMS((X, "red"), (X, "green"), (Y, "blue"))
def colours(x, text):
    try:
        colour = Colour.of(text)
    except KeyError:
        return x, [member.name.title() for member in Colour]
    return x * colour.weight, colour, colour + 1, f"{colour.name}={colour:d}"


class Flags(enum.Flag):
    BOLD = enum.auto()
    WIDE = enum.auto()


@PROGRAMS((X, Flags.BOLD), (X, Flags.WIDE), (X, Flags.BOLD | Flags.WIDE))
def flags(x, given):
    if Flags.BOLD in given:
        x = x * 2
    if given & Flags.WIDE:
        x = x + 1
    return x, given == Flags.BOLD


class Span(NamedTuple):
    start: int
    stop: int = 3

    def shifted(self, by):
        return self._replace(start=self.start + by, stop=self.stop + by)

    @property
    def slice(self):
        return slice(*self)


@PROGRAMS((X, Span(0, 2)), (X, Span(1)), (Y, Span(2, 2)))
def spans(x, span):
    start, stop = moved = span.shifted(1)
    return x[span.slice] * 2, moved, stop - start, span._asdict(), span < moved


@PROGRAMS((X, "the cat the dog the end"), (X, "a"), (Y, ""))
def count_words(x, text):
    counts = collections.Counter(text.split())
    counts.update(["the"])
    counts["cat"] -= 1
    (word, number), *rest = counts.most_common()
    return x + number, word, len(rest), +counts, sorted(counts.elements())


@PROGRAMS((X, 3.14159, "pi"), (X, -2.0, "x"), (Y, 1e9, ""))
def format_numbers(x, number, name):
    parts = [
        f"{number:.3f}", f"{number:>12.2e}|", f"{name!r:>8}", f"{name:*^9}", f"{int(number):+d}",
        f"{int(number):08b}" if number > 0 else "neg", f"{number:,.1f}", f"{name=}", f"{x.shape[0]:03}",
        "{0:<{width}}|{name}".format(name, width=6, name=name), "%-6s|%05.1f|%x" % (name, number, 255),  # noqa: UP031
        string.Template("$name is $n").substitute(name=name, n=int(number)),
        "{a[key]} {b.start} {c[0]!s:>4}".format(a={"key": 1}, b=slice(2, 3), c=["z"]),
    ]  # fmt: skip
    return x + len(parts[0]), parts


@PROGRAMS((X, ["alpha", "beta"]), (X, ["x"]), (Y, []))
def build_text(x, names):
    lines = []
    for index, name in enumerate(names):
        lines.append(f"{index}. {name.title():<10}".rstrip() + "." * (3 - index))
    text = "\n".join(lines)
    table = str.maketrans("ab", "AB")
    return (
        x * len(text),
        text.translate(table),
        text.count("."),
        text.encode("utf-8")[:3],
        text[::-1],
    )


@PROGRAMS((X, "k1=v1, k2 = v2"), (X, "nothing"), (Y, "a=b,c"))
def regular_expressions(x, text):
    found = re.findall(r"(\w+)\s*=\s*(\w+)", text)
    joined = re.sub(r"\d", lambda match: f"<{match.group()}>", text)
    return x + len(found), dict(found), joined, bool(re.match("k", text))


@PROGRAMS((X, {"b": 1, "a": 2}), (X, {"z": 0}), (Y, {}))
def order_of_a_dict(x, table):
    table["new"] = len(table)
    if "a" in table:
        table["a"] = table.pop("a")
    first = next(iter(table))
    inverted = {value: key for key, value in table.items()}
    merged = {**table, "b": 9} | {"c": 3}
    return x + table["new"], first, list(table), inverted, merged, list(reversed(merged))


@PROGRAMS((X, [1, 2, 3, 4, 5], 2), (X, [9], 3), (Y, [], 1))
def batches(x, items, size):
    iterator = iter(items)
    found = []
    while batch := list(itertools.islice(iterator, size)):
        found.append(tuple(batch))
    return x * len(found), found, [sum(window) for window in itertools.pairwise(items)]


@PROGRAMS((X, [3, 1, 2]), (X, [5, 5]), (Y, [0]))
def slices_and_stars(x, items):
    first, *middle, last = [*items, *items]
    items[1:1] = [7, 8]
    del items[::2]
    copied = items[:]
    copied.reverse()
    return x + first - last, middle, items, copied, items == copied[::-1], items * 2


@PROGRAMS((X, {1, 2, 3}, {2, 3, 4}), (X, {1}, set()), (Y, {5}, {5}))
def set_algebra(x, left, right):
    both = left & right
    left |= right
    left.discard(1)
    return x + len(both), sorted(left), sorted(left ^ right), both <= right, frozenset(both)


@PROGRAMS((X, [1.0, 2.0]), (X, [3.0]), (Y, []))
def history_of_means(x, values):
    recent = collections.deque(maxlen=2)
    means = []
    for value in values:
        recent.append(x * value)
        means.append(torch.stack(list(recent)).mean(0))
    return means, len(recent), [v.shape for v in recent]


@PROGRAMS((X, [("a", 1), ("b", 2)]), (X, [("a", 3)]))
def nested_defaults(x, rows):
    tree = lambda: collections.defaultdict(tree)  # noqa: E731
    root = tree()
    for name, number in rows:
        root[name]["deep"]["number"] = x * number
    chained = collections.ChainMap({"a": 0}, dict(rows))
    return root["a"]["deep"]["number"], list(root), chained["a"], sorted(chained)


@PROGRAMS((X, [(0, 1), (1, 2)]), (X, []), (Y, [(3, 3)]))
def graph_search(x, edges):
    neighbours = {}
    for a, b in edges:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    seen, queue = {0}, collections.deque([(0, x)])
    while queue:
        node, value = queue.popleft()
        for other in neighbours.get(node, ()):
            if other not in seen:
                seen.add(other)
                queue.append((other, value * 2 + other))
    return value, sorted(seen), neighbours


@PROGRAMS((X, b"\x01\x02\x03"), (X, b""), (Y, b"\xff"))
def byte_strings(x, data):
    numbers = list(data)
    buffer = bytearray(data)
    buffer.append(4)
    buffer[0] = 9
    view = memoryview(data)
    return x + sum(numbers), bytes(buffer), len(view), data.hex(), int.from_bytes(data, "big")


class Place(NamedTuple):
    row: int
    column: str


class Count(int):
    pass


PLACES = {Place(1, "x"): 2.0, Place(2, "y"): 3.0, Count(5): 7.0}


@PROGRAMS((X, 1, "x"), (X, 2, "y"), (X, 3, "z"), (X, 5, "y"))
def instances_of_builtin_classes_as_keys(x, row, column):
    key = Place(row, column)
    found = PLACES.get(key, 1.0), PLACES.get(Count(row), 1.0), PLACES.get((row, column), 1.0)
    known = (
        key in {Place(2, "y")},
        {key: 1} == {(row, column): 1},
        {(key, row)} == {((row, column), row)},
    )
    return x * found[0], found, known, hash(key) == hash((row, column))


class Field:
    def __init__(self, n):
        self.n = n
        self.refuse = [n]

    def __repr__(self):
        return f"Field({self.n})"


class Wide(Field):
    pass


@PROGRAMS((X, "Wide"), (Y, "Late"), (Y, "Wide"))
def classes_by_their_bases(x, name):
    kinds = {kind.__name__: kind for kind in Field.__subclasses__()}
    listed = Wide.mro()
    listed.append(name)
    return x * len(listed), list(kinds), [kind.__name__ for kind in listed[:2]], listed[2:]


@PROGRAMS((X, 1), (X, 2), (X, 3))
def attributes_in_texts(x, n):
    space = types.SimpleNamespace(a=1, b=[n], c=types.SimpleNamespace(z=(1,)))
    field = Field(n)
    texts = [repr(space), f"{space}", "{0.a} {0.b[0]} {0.c.z}".format(space)]  # noqa: UP032
    texts += ["{0.refuse} {0.n:>4} {0} {0.__class__.__name__}".format(field)]  # noqa: UP032
    try:
        "{0.missing}".format(field)  # noqa: UP030, UP032
    except AttributeError as error:
        texts.append(str(error))
    return x + 1, texts


@PROGRAMS((X, Field(1), 1), (X, Field(2), 2), (Y, Field(3), 3))
def attributes_as_a_dict(x, field, n):
    found = []
    for name, value in vars(field).items():
        found.append((name, value))
        field.n = n + 5
    keys = iter(vars(field))
    found += [next(keys), *keys, vars(field).keys() == {"n", "refuse"}]
    made = Wide(n)
    made.z = n
    found += [vars(made).keys() & {"z", "y"}, vars(made).keys() >= {"n"}]
    for value in made.__dict__.values():
        found.append(value)
    try:
        for name in vars(made):
            setattr(made, name + "x", 1)
    except RuntimeError as error:
        found.append(str(error))
    for name in list(vars(made)):
        delattr(made, name)
    empty = iter(vars(made))
    return x + 1, found, next(empty, None), len(vars(made))


FUNCTIONS = {torch.relu: 1, torch.nn.functional.gelu: 2}


@PROGRAMS((X, torch.relu), (X, torch.nn.functional.gelu), (X, torch.tanh), (X, torch.Tensor.relu))
def functions_of_torch_compared(x, function):
    listed = function in (torch.relu, torch.tanh), [torch.tanh, torch.relu].count(function)
    same = function == torch.relu, function != torch.relu, function == area_of, function == None  # noqa: E711
    return function(x) * FUNCTIONS.get(function, 3), listed, same, str(function), f"{function!r}"


def area_of(x):
    return x * x
