"""Values of the standard library in captured code: one graph, and what CPython gives."""

import collections
import contextlib
import copy
import enum
import functools
import itertools
import operator
import sys
import time
import types

import pytest
import torch
from differential import check

X = torch.tensor([1.0, -2.0])


class Colour(enum.Enum):
    RED = 1
    GREEN = 2

    def __init__(self, number):
        self.double = number * 2


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


def from_keys(x):
    ordered = collections.OrderedDict.fromkeys("ab")
    ordered.update(self=1, key=2)
    return x + 1, dict.fromkeys("ab", 1), dict.fromkeys([1, 2]), ordered


def deques(x):
    queue = collections.deque([1, 2, 3], maxlen=3)
    queue.append(4)
    queue.appendleft(0)
    queue.rotate(1)
    queue.extendleft([7, 8])
    queue[0] += 1
    other = queue.copy()
    del other[0]
    return x + len(queue), list(queue), queue.popleft(), queue, other, queue == other, queue.maxlen


def deque_errors(x):
    queue = collections.deque()
    try:
        queue.pop()
    except IndexError as error:
        text = str(error)
    return x + 1, text, 3 in queue, bool(queue), list(reversed([*queue, 1]))


def counters(x):
    counter = collections.Counter("abca")
    counter["z"] += 1
    counter.update({"a": 2})
    return x + counter["a"], counter.most_common(1), counter["missing"], sorted(counter.elements())


def ordered_dicts(x):
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    ordered.move_to_end("a")
    ordered.move_to_end("c", last=False)
    return x + 1, ordered, ordered.popitem(last=False)


def chain_maps(x):
    merged = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return x + merged["b"], merged["a"], sorted(merged), len(merged)


def chains(x):
    parts = itertools.chain([1], (2, 3), "a")
    return x + 1, list(parts), list(itertools.chain.from_iterable([[1], [2]])), next(parts, None)


def slices_of_iterators(x):
    source = iter(range(10))
    first = list(itertools.islice(source, 2, 7, 2))
    return (
        x + 1,
        first,
        next(source),
        list(itertools.islice([1, 2], None)),
        list(itertools.islice("abc", 1)),
    )


def counting(x):
    numbers = itertools.count(3, 2)
    pairs = list(zip(itertools.repeat("a", 2), numbers, strict=False))
    cycled = itertools.cycle([1, 2])
    return (
        x + 1,
        pairs,
        next(numbers),
        [next(cycled) for _ in range(5)],
        list(itertools.repeat(1, 0)),
    )


def sums_of_iterators(x):
    totals = list(itertools.accumulate([x, x, x], initial=x))
    return (
        totals,
        list(itertools.accumulate([1, 2, 3], operator.mul)),
        list(itertools.accumulate([])),
    )


def longest(x):
    return (
        x + 1,
        list(itertools.zip_longest([1], "abc", fillvalue=0)),
        list(itertools.zip_longest()),
    )


def while_iterators(x):
    below = list(itertools.takewhile(lambda value: value < 3, [1, 2, 5, 1]))
    behind = list(itertools.dropwhile(lambda value: value < 3, [1, 2, 5, 1]))
    return x + 1, below, behind, list(itertools.filterfalse(None, [0, 1, ""]))


def choosing_iterators(x):
    selected = list(itertools.compress("abcd", [1, 0, True, False]))
    powers = list(itertools.starmap(pow, [(2, 3), (3, 2)]))
    return (
        x + 1,
        selected,
        powers,
        list(itertools.pairwise([1, 2, 3])),
        list(itertools.pairwise([1])),
    )


def combinatoric_iterators(x):
    values = [x, x * 2]
    pairs = [left + right for left, right in itertools.product(values, repeat=2)]
    return (
        pairs, list(itertools.combinations([1, 2, 3], 2)), list(itertools.permutations("ab")),
        list(itertools.combinations_with_replacement("ab", 2)), list(itertools.product("ab", [1])),
    )  # fmt: skip


def tees(x):
    left, right = itertools.tee(iter([1, 2, 3]))
    return x + next(left), list(right), list(left)


def enumerations(x):
    members = list(Colour), Colour["RED"], Colour(2), len(Colour), Colour.RED in Colour
    flags = Access.READ | Access.WRITE, Access(3) & Access.READ
    return x + Colour.RED.value + Colour.GREEN.double, members, flags, Colour.RED.name


class Chosen(str, enum.Enum):  # noqa: UP042 - as libraries have it
    A = "a"
    B = "b"

    @classmethod
    def _missing_(cls, value):
        raise ValueError(f"{value} is none of {[one.value for one in cls]}")


class Lenient(enum.Enum):
    A = "a"
    L = [1]

    @classmethod
    def _missing_(cls, value):
        found = [one for one in cls if isinstance(value, str) and one.value == value.lower()]
        return found[0] if found else None


def values_without_a_member(x):
    errors = []
    for kind in (Chosen, Lenient):
        try:
            kind("zz")
        except ValueError as error:
            errors.append((str(error), error.__context__))
    return x, errors, Chosen("a"), Chosen(Chosen.B), Lenient("A"), Lenient("a"), Lenient([1])


def strings(x):
    parts = "a-b".split("-"), "{} {:>3}".format(1, "z"), f"{3.14159:.2f}", "%s" % (1,)  # noqa: UP031
    joined = ",".join(str(value) for value in range(3)), "-".join({"a": 1})
    raw = b"ab" + b"c", b"abc"[1], b"a", bytes([1, 2]), int.from_bytes(b"\1\0", "little")
    return x + 1, parts, joined, raw, "abc".partition("b"), "aXb".title()[::-1]


def matching(x):
    def kind_of(value):
        match value:
            case [1, *rest]:
                return rest
            case {"key": found, **others}:
                return found, others
            case Colour.RED:
                return "red"
            case str(text) | bytes(text):
                return text
            case types.SimpleNamespace():
                return "namespace"
        return None

    values = [1, 2], {"key": 1, "other": 2}, Colour.RED, "text", 1.0, (1,), b"raw"
    return x + 1, [kind_of(value) for value in values]


def sets(x):
    small = {3, 1, 2}
    return x + sum(small), sorted(small | {5}), list(small), frozenset(small), {1} < small


@contextlib.contextmanager
def noting(notes, name):
    notes.append(f"begin {name}")
    try:
        yield name
    finally:
        notes.append(f"end {name}")


def context_managers(x):
    notes = []
    with noting(notes, "a") as name, contextlib.suppress(KeyError):
        y = x + len(name)
        raise KeyError(name)
    with contextlib.ExitStack() as stack:
        stack.callback(notes.append, "callback")
        stack.enter_context(noting(notes, "b"))
        y = y * 2
    return y, notes


class Closing:
    """Its class has the methods that count; an instance may have others of the same names."""

    def __init__(self, notes):
        self.notes = notes

    def __enter__(self):
        return self.notes

    def __exit__(self, *raised):
        self.notes.append(len(raised))


def stacks_of_what_is_no_manager(x):
    notes, texts = [], []
    manager = Closing(notes)
    manager.__enter__ = manager.__exit__ = None
    with contextlib.ExitStack() as stack:
        stack.push(lambda *raised: notes.append("pushed"))
        stack.push(Closing(notes))
        entered = stack.enter_context(manager)
        try:
            stack.enter_context(3)
        except TypeError as error:
            texts.append(str(error))
        y = x * 2
    return y, notes, entered is notes, texts


def decorated(x):
    def doubled(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return function(*arguments) * 2

        return wrapper

    @doubled
    def shifted(value: int) -> int:
        """Shifts."""
        return value + 1

    return shifted(x), shifted.__name__, shifted.__doc__, list(shifted.__annotations__)


def handled_exceptions(x):
    try:
        raise ValueError(1)
    except ValueError:
        kind = sys.exc_info()[0]
    return x + 1, kind, sys.exc_info(), sys.exception()


def keys(x):
    tensors = {("a", 1): x, (x.shape[0],): 2}
    own = object()
    objects = {own: 1, (own, 1): 2}
    return tensors["a", 1] + 1, len(tensors), objects[own] + objects[own, 1]


def functools_values(x):
    by_difference = functools.cmp_to_key(lambda left, right: right - left)
    added = functools.partial(torch.add, x, alpha=2)
    return added(1), sorted([1, 3, 2], key=by_difference), functools.reduce(operator.add, [1, 2, 3])


FUNCTIONS = (
    from_keys, deques, deque_errors, counters, ordered_dicts, chain_maps, chains, slices_of_iterators,
    counting, sums_of_iterators, longest, while_iterators, choosing_iterators, combinatoric_iterators,
    tees, enumerations, values_without_a_member, strings, matching, sets, context_managers,
    stacks_of_what_is_no_manager, decorated, handled_exceptions, keys, functools_values,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_one_graph(function):
    check(function, [(X,), (X * 3,)])


def print_nothing():
    time.sleep(0)


def lazy_iterators(x):
    numbers = iter([1, 2, 3])
    pairs = zip([1, 2, 3], map(str, numbers), strict=False)
    numbered = enumerate("abc")
    kept = filter(None, [0, 1, 2])
    joined = itertools.chain([1], [2])
    entries = iter({"a": 1, "b": 2}.items())
    first = next(pairs), next(numbered), next(kept), next(entries)
    print_nothing()
    return x + 1, first, list(pairs), list(numbered), list(kept), list(joined), list(entries)


def loops_with_breaks(x):
    for key, value in {"a": 1, "b": 2}.items():  # noqa: B007
        print_nothing()
        x = x + value
    for value in {1, 2}:
        print_nothing()
        x = x * value
    for _, (left, right) in enumerate(zip([1, 2], itertools.count())):
        print_nothing()
        x = x + left * right
    return x, key


@pytest.mark.parametrize("function", [lazy_iterators, loops_with_breaks])
def test_iterators_alive_at_breaks(function):
    check(function, [(X,), (X * 3,)], fullgraph=False)


def test_new_functions_escape_with_their_annotations():
    def make(x):
        def inner(value: int, *, other: str = "a") -> float:
            return value + x

        inner.note = "kept"
        return inner

    from differential import run_graph
    from weft_bytecode_capture import compile_frames

    made, plain = compile_frames(make, run_graph)(X), make(X)
    assert made.__annotations__ == plain.__annotations__
    assert (made.__kwdefaults__, made.note) == (plain.__kwdefaults__, plain.note)
    assert torch.equal(made(1), plain(1))
    assert copy.copy(made) is made


def test_what_callers_handle_is_seen():
    def handled(x):
        return x + 1, sys.exception(), sys.exc_info()[0]

    def context(x):
        try:
            raise ValueError
        except ValueError as error:
            return x + 1, error.__context__

    def inside(function, error):
        try:
            raise error
        except KeyError:
            return function(X)

    from differential import run_graph
    from weft_bytecode_capture import compile_frames

    for function in (handled, context):
        compiled = compile_frames(function, run_graph)
        for _ in range(2):
            assert compiled(X)[1:] == function(X)[1:]
            error = KeyError("outside")
            assert inside(compiled, error)[1] is inside(function, error)[1] is error


def test_none_is_told_from_objects_of_which_nothing_is_known():
    def text(error, default):
        if error is None and default is None:
            return "none"
        return "some" if error is not None else "default"

    from differential import run_graph
    from weft_bytecode_capture import compile_frames

    compiled = compile_frames(text, run_graph)
    for arguments in (
        (ValueError(), ValueError()),
        (None, None),
        (None, ValueError()),
        (KeyError(), None),
    ):
        assert compiled(*arguments) == text(*arguments)
