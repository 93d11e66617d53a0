"""Builtin containers, iterators and strings: captured code leaves them as CPython does."""

# The programs below are written for what they do.
# ruff: noqa: B905, C416, RUF017, UP031

from __future__ import annotations

import collections
import functools
import itertools
import operator

import pytest
import torch
from differential import check
from weft_bytecode_capture import CaptureOptions, compile_frames


def sets(x):
    s = {1, 2, x}
    t = set()
    t.add(x)
    t.update([4, 5], (6,))
    t.discard(9)
    t.remove(4)
    s |= {8}
    f = frozenset([x, 1])
    return (
        sorted(s),
        s & {1, 8},
        s - t,
        s ^ {1},
        s | t,
        1 in s,
        len(t),
        s >= {1},
        s.isdisjoint({99}),
        f,
        {f: 1}[f],
        sorted(s.union(t)),
        s.copy() == s,
        {*s, 77} > s,
        s.issubset(s),
        sorted(s.symmetric_difference(t)),
        bool(set()),
    )


def set_iteration(x):
    total = []
    for item in {3, 1, x, 2}:
        total.append(item * 2)
    return total, [i for i in frozenset("abc")], list({x: 1, "k": 2}.keys() & {x})


def set_errors(x):
    s = {x}
    try:
        s.remove(99)
    except KeyError as error:
        missing = error.args
    try:
        s.add([])
    except TypeError as error:
        return missing, str(error), s.pop(), s


def outside_sets(s, x):
    s.add(x)
    s.discard(1)
    return len(s), x in s, sorted(s)


def lists(x):
    a = [3, 1, x]
    b = a
    a.sort()
    a += [9]
    a[1:2] = [7, 8]
    a.insert(0, x)
    c = a[::-1]
    del a[0]
    a.reverse()
    d = a * 2
    return (
        a,
        b is a,
        c,
        d,
        a.index(9),
        a.count(7),
        a.pop(),
        a.pop(0),
        sorted(d, reverse=True),
        a < [5],
        [*a, *c],
        a.copy(),
    )


def tuples(x):
    t = (1, x, 3)
    a, *b = t
    (c, d), e = (1, 2), [x]
    *f, g = "abc"
    return (
        t + (4,),
        t * 2,
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        t[1:],
        t.index(3),
        x in t,
        t < (2,),
        hash(t) == hash((1, x, 3)),
        max(t),
    )


def dicts(x):
    d = {"a": 1, x: 2}
    e = d
    d["c"] = [x]
    d.update({"z": 0}, k=5)
    d.setdefault("a", 9)
    d.setdefault("n", []).append(x)
    p = d.pop("z")
    d |= {"m": 1}
    keys, values, items = list(d), list(d.values()), list(d.items())
    return (
        d,
        e is d,
        p,
        d.get("q"),
        d.get("q", 4),
        keys,
        values,
        items,
        "a" in d,
        len(d),
        d.pop("nope", None),
        {**d, "a": 0},
        dict(zip("ab", [1, x])),
        dict.fromkeys("ab", 0),
        list(reversed(d)),
        d.popitem(),
        {k: v for k, v in d.items() if v},
    )


def dict_views(x):
    d = {"a": x, "b": 2}
    return (
        d.keys() == {"a": 0, "b": 1}.keys(),
        ("a", x) in d.items(),
        2 in d.values(),
        sorted(d.keys() | {"c"}),
        d.keys() - {"a"},
    )


def deques(x):
    d = collections.deque([1, 2, x], maxlen=4)
    d.append(5)
    d.appendleft(0)
    d.rotate(1)
    e = collections.deque("ab")
    e.extend([x])
    e.extendleft([7])
    return (
        list(d),
        d.pop(),
        d.popleft(),
        len(d),
        d[0],
        x in d,
        d.maxlen,
        e,
        list(reversed(e)),
        e.count("a"),
    )


def counters(x):
    c = collections.Counter("hello")
    c.update("xx")
    c["z"] += x
    return c["l"], c["none"], c.most_common(2), sum(c.values()), c


def default_dicts(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["b"] += [1, 2]
    e = collections.defaultdict(int, k=4)
    e["n"] += 1
    return d, e, d.get("zz"), len(d), "zz" in d


def ordered(x):
    o = collections.OrderedDict(a=1, b=x)
    o.move_to_end("a")
    o["c"] = 3
    o.move_to_end("c", last=False)
    return list(o), o.popitem(last=False), o


def ordered_from_outside(x, o, key, last):
    """Entries move among old and new ones; a key that is not there raises."""
    o["new"] = x
    o.move_to_end(key, last=last)
    o.move_to_end("b")
    return list(o), o.popitem(last=False), o


def chain_maps(x):
    c = collections.ChainMap({"a": x}, {"a": 0, "b": 2})
    return c["a"], c["b"], "q" in c, sorted(c)


def slicing(x):
    s = slice(1, x, 2)
    r = range(0, 20, 3)
    return (
        list(range(10))[s],
        s.indices(5),
        s.start,
        "hello"[::-1],
        r[2],
        r[1:3],
        list(reversed(r)),
        len(r),
        6 in r,
        r.index(9),
        r == range(0, 20, 3),
    )


def iterators(x):
    pairs = list(enumerate("ab", start=x))
    zipped = list(zip([1, 2], (x, 4), strict=True))
    mapped = list(map(operator.add, [1, 2], [x, x]))
    kept = list(filter(None, [0, x, 2])) + list(filter(lambda v: v > 1, [x, 2]))
    it = iter([1, 2, 3])
    first = next(it)
    rest = list(it)
    done = next(it, "end")
    return (
        pairs,
        zipped,
        mapped,
        kept,
        first,
        rest,
        done,
        list(reversed([1, x])),
        [*zip("ab", [1])],
        list(iter(lambda: 3, 3)),
    )


def short_zip(x):
    it = iter([1, 2, 3])
    a = list(zip(it, [x]))
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return a, list(it), str(error)


def iter_tools(x):
    i = itertools
    return [
        list(i.chain([1], (x,))),
        list(i.chain.from_iterable([[1], [x]])),
        list(i.islice(i.count(x), 3)),
        list(i.islice([1, 2, 3, 4], 1, None, 2)),
        list(i.repeat(x, 2)),
        list(i.product([1, 2], "a")),
        list(i.accumulate([1, 2, x])),
        list(i.accumulate([1, 2, x], operator.mul, initial=2)),
        list(i.combinations([1, 2, x], 2)),
        list(i.permutations([1, x])),
        list(i.zip_longest([1], [x, 2], fillvalue=0)),
        list(i.takewhile(lambda v: v < 3, [1, 5, 1])),
        list(i.dropwhile(lambda v: v < 3, [1, 5, 1])),
        list(i.starmap(operator.sub, [(5, x)])),
        [(k, list(g)) for k, g in i.groupby([1, 1, x])],
        list(i.pairwise([1, x, 3])),
        list(i.islice(i.cycle([1, x]), 3)),
        list(i.compress("abc", [1, 0, 1])),
        [list(t) for t in i.tee([1, x])],
        list(i.filterfalse(None, [0, x])),
        list(i.combinations_with_replacement([1, x], 2)),
    ]


def orders(x):
    words = ["b", "A", "c"]
    return (
        sorted(words, key=str.lower),
        sorted([3, x, 2], key=lambda v: -v),
        min([3, x]),
        max(3, x, key=lambda v: -v),
        min([], default=x),
        sorted([(1, "b"), (1, "a"), (0, "c")], key=lambda p: p[0]),
        sorted({"b": 1, "a": 2}),
        min("abc"),
        sum([[1], [x]], []),
    )


def folds(x):
    return (
        any([0, x]),
        all([]),
        all([1, x > 1]),
        sum([1, x], 10),
        functools.reduce(lambda a, b: a * b, [1, 2, x]),
        len([x]),
        abs(-x),
        divmod(7, x),
        round(2.567, 2),
        pow(2, x),
        pow(2, x, 5),
        bool(x),
        int("7"),
        float("1.5"),
        str(x),
        hex(255),
        ord("a"),
        chr(98),
        bin(x),
    )


def strings(x):
    name = "weft"
    s = f"{name!r:>8}|{x:03d}|{x / 3:.2f}|{name.upper()}|{x=}|{'yes' if x else 'no'}"
    t = f"{x} {2} {x!r:>3}"
    u = "%s-%d-%.1f-%5s|%%" % (name, x, 1.25, "r")
    return (
        s,
        t,
        u,
        name.join("ab"),
        "a,b".split(","),
        " x ".strip(),
        name[1:3],
        name.startswith(("w", "q")),
        name.replace("e", "3"),
        name.find("z"),
        "abc" < "abd",
        name * 2,
        "e" in name,
        b"ab"[0],
        name.encode(),
        "1".zfill(3),
        name.center(8, "*"),
        "a-b".partition("-"),
        "%(k)s" % {"k": x},
        name.isalpha(),
        "\n".join(map(str, [x, 2])),
        "{}",
        f"{x:>{x + 3}}",
        format(3.14159, ".2f"),
        "Ab".swapcase(),
        "%r" % (name,),
    )


def matches(subject):
    match subject:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return "big", n
        case [1, *rest]:
            return "list", rest
        case {"kind": "a", **others}:
            return "mapping", others
        case (a, b):
            return "pair", a, b
        case str() as s:
            return s
        case None:
            return "none"
        case _:
            return "other"


def chained(x):
    return (
        0 < x < 3,
        1 < x > 0,
        x == x == 1,
        not x,
        (x and "t") or "f",
        x if x > 1 else -x,
        (y := x * 2) + y,
        x is None,
        x is not None,
    )


def aliasing(a, b):
    c = [a, a, b]
    a.append(1)
    return c[0] is c[1], c[0] is c[2], c, a


def several_returns(x):
    t = [x]
    return t, t, (t, [t])


def unpacking(x):
    def f(a, *args, k=0, **kwargs):
        return a, args, k, kwargs

    return f(*[1, 2], *(x,), k=3, z=x), f(x), [*range(2), *[x]], {"a": 1, "b": x}


def swaps(x):
    a, b = 1, x
    a, b = b, a
    c = d = [a]
    c.append(b)
    a, (b, *c), d[0] = 1, (2, 3, x), 4
    return a, b, c, d


def loops(n):
    out = []
    for i in range(10):
        if i == 1:
            continue
        if i > n:
            break
        out.append(i)
    else:
        out.append("else")
    while n:
        n -= 1
    else:
        out.append("done")
    return out


_WHOLE = [
    sets, set_iteration, set_errors, lists, tuples, dict_views, default_dicts, ordered, slicing, iterators,
    short_zip, orders, folds, chained, several_returns, unpacking, swaps, loops,
]  # fmt: skip
_BROKEN = [dicts, deques, counters, chain_maps, iter_tools, strings]


@pytest.mark.parametrize("function", _WHOLE)
def test_data_in_one_graph(function):
    check(function, [(1,), (2,), (3,)])


@pytest.mark.parametrize("function", _BROKEN)
def test_data_with_breaks(function):
    check(function, [(1,), (2,), (3,)], fullgraph=False)


@pytest.mark.parametrize(
    "subject", [0, 1, 500, 50, [1, 2, 3], {"kind": "a", "z": 1}, (3, 4), "word", None, 2.5, {"kind": "b"}, []]
)  # fmt: skip
def test_match(subject):
    check(matches, [(subject,)])


def test_aliasing_of_arguments():
    check(aliasing, [([1], [2]), ([3, 4], [])])
    shared = [5]
    check(aliasing, [([1], [2]), (shared, shared), ([1], [2])])


@pytest.mark.parametrize("last", [True, False])
def test_entries_move_in_dicts_from_outside(last):
    moved = [collections.OrderedDict(a=1, b=2, c=3) for _ in range(2)]
    check(ordered_from_outside, [(1, moved[0], "a", last), (2, moved[1], "c", last)])
    check(ordered_from_outside, [(1, moved[0], "z", last)], fullgraph=False)


def test_outside_sets():
    check(outside_sets, [({1, 2}, 5), ({1, 2}, 6), ({"a"} | {1}, 5)], fullgraph=False)


def appends(out, x):
    out.append(x)
    return len(out)


def inserts(d, k, x):
    d[k] = x
    d.pop("old", None)
    return d


def test_outside_containers():
    check(appends, [([1], 2), ([1], 3), ([], 3), ([1, 2, 3], 4)])
    check(inserts, [({"old": 1}, "a", 2), ({}, "a", 2), ({"a": 1, "b": 2}, "a", 3)])


def test_append_to_an_outside_list_does_not_recompile():
    from weft_bytecode_capture import compile_frames

    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    def f(out, x):
        out.append(x + 1)

    compiled, out = compile_frames(f, backend), []
    for _ in range(5):
        compiled(out, torch.ones(2))
    assert len(out) == 5
    assert len(graphs) == 1


def test_inputs_that_share_memory_and_are_written_have_a_graph_of_their_own():
    def function(x, y):
        x.add_(1)
        return x * y

    reports = []
    compiled = compile_frames(
        function,
        lambda graph, inputs: graph.forward,
        CaptureOptions(fullgraph=True),
        None,
        reports.append,
    )
    for make in (
        lambda: (torch.ones(3), torch.ones(3)),
        lambda: (base := torch.ones(4)) is not None and (base[:3], base[1:]),
        lambda: (torch.ones(3), torch.ones(3)),
    ):
        arguments, expected = make(), make()
        torch.testing.assert_close(compiled(*arguments), function(*expected))
        torch.testing.assert_close(arguments, expected)
    assert len(reports) == 2
    assert "in one storage" in str(reports[1].recompile_reason)
