"""Each public name of the standard library's modules for plain programs, in one graph, beside CPython."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import enum
import functools
import heapq
import itertools
import operator
import random
import string
from typing import Any

import pytest
import torch
from differential import check

PROGRAMS: dict[str, dict[str, str]] = {
    "itertools": {
        "accumulate": "list(accumulate([1, 2, 3])), list(accumulate([1, 2], max, initial=5))",
        "batched": "list(batched('abcde', 2)), list(batched([], 3))",
        "chain": "list(chain('ab', [1])), list(chain.from_iterable(['ab', 'c']))",
        "combinations": "list(combinations('abc', 2))",
        "combinations_with_replacement": "list(combinations_with_replacement('ab', 2))",
        "compress": "list(compress('abc', [1, 0, 1]))",
        "count": "list(zip(count(3, 2), 'ab')), next(count())",
        "cycle": "list(islice(cycle('ab'), 5))",
        "dropwhile": "list(dropwhile(lambda n: n < 2, [1, 2, 1]))",
        "filterfalse": "list(filterfalse(None, [0, 1, 2])), list(filterfalse(str.isdigit, 'a1'))",
        "groupby": "[(key, list(group)) for key, group in groupby('aabc')]",
        "islice": "list(islice('abcdef', 1, None, 2)), list(islice('abc', 2))",
        "pairwise": "list(pairwise('abc'))",
        "permutations": "list(permutations('abc', 2)), list(permutations([1, 2]))",
        "product": "list(product('ab', [1, 2])), list(product([0, 1], repeat=2))",
        "repeat": "list(repeat(1, 3)), list(zip(repeat(x), 'ab'))",
        "starmap": "list(starmap(pow, [(2, 3), (3, 2)]))",
        "takewhile": "list(takewhile(lambda n: n < 2, [1, 2, 1]))",
        "tee": "[list(part) for part in tee('abc', 3)]",
        "zip_longest": "list(zip_longest('ab', [1], fillvalue=x))",
    },
    "functools": {
        "WRAPPER_ASSIGNMENTS": "WRAPPER_ASSIGNMENTS[:3]",
        "WRAPPER_UPDATES": "WRAPPER_UPDATES",
        "Placeholder": "Placeholder is Placeholder",
        "cache": "cached_square(3), cached_square(3)",
        "cached_property": "Lazy(3).double, Lazy(x).double",
        "cmp_to_key": "sorted([3, 1, 2], key=cmp_to_key(lambda a, b: b - a))",
        "lru_cache": "recent_square(3), recent_square(4)",
        "partial": "partial(pow, 2)(3), partial(divmod, 7).args, partial(int, base=2)('11')",
        "partialmethod": "Shape(2).grown(), Shape(2).scale(3)",
        "reduce": "reduce(lambda a, b: a * b, [1, 2, 3]), reduce(max, [], 7)",
        "singledispatch": "described(1), described('a'), described(1.5)",
        "singledispatchmethod": "Shape(2).described(1), Shape(2).described('a')",
        "total_ordering": "Shape(1) < Shape(2), Shape(1) >= Shape(2), Shape(2) <= Shape(2)",
        "update_wrapper": "update_wrapper(lambda: 1, area).__name__",
        "wraps": "wraps(area)(lambda: 2)(), wraps(area)(lambda: 2).__wrapped__ is area",
    },
    "operator": {
        "abs": "abs(-2), abs(x)",
        "add": "add(1, 2), add(x, 1), add('a', 'b')",
        "and_": "and_(6, 3), and_({1, 2}, {2})",
        "attrgetter": "attrgetter('side')(Shape(2)), attrgetter('side.real', 'side')(Shape(2))",
        "call": "call(divmod, 7, 2), call(int, '11', base=2)",
        "concat": "concat([1], [2]), concat('a', 'b')",
        "contains": "contains([1, 2], 2), contains('abc', 'd'), contains({1: 2}, 1)",
        "countOf": "countOf([1, 2, 1], 1), countOf('aab', 'a')",
        "delitem": "changed([1, 2, 3], lambda v: delitem(v, 1)), changed({1: 2}, lambda v: delitem(v, 1))",
        "eq": "eq(1, 1.0), eq([1], [2])",
        "floordiv": "floordiv(7, 2), floordiv(x, 2)",
        "ge": "ge(2, 1), ge(x, 0)",
        "getitem": "getitem([1, 2], 1), getitem({'a': 1}, 'a'), getitem('abc', slice(1, 3))",
        "gt": "gt(2, 1), gt(x, 0)",
        "iadd": "iadd([1], (2,)), iadd(1, 2)",
        "iand": "iand({1, 2}, {2}), iand(6, 3)",
        "iconcat": "iconcat([1], [2]), iconcat('a', 'b')",
        "ifloordiv": "ifloordiv(7, 2)",
        "ilshift": "ilshift(1, 3)",
        "imatmul": "imatmul(x, x)",
        "imod": "imod(7, 4)",
        "imul": "imul([1], 2), imul(2, 3)",
        "index": "index(3), index(True)",
        "indexOf": "indexOf([1, 2], 2), indexOf('abc', 'c')",
        "inv": "inv(5)",
        "invert": "invert(5)",
        "ior": "ior({1}, {2}), ior(4, 1)",
        "ipow": "ipow(2, 3)",
        "irshift": "irshift(8, 2)",
        "is_": "is_(None, None), is_(x, x), is_(1, None)",
        "is_none": "is_none(None), is_none(x)",
        "is_not": "is_not(None, None), is_not(x, None)",
        "is_not_none": "is_not_none(None), is_not_none(x)",
        "isub": "isub({1, 2}, {2}), isub(3, 1)",
        "itemgetter": "itemgetter(1)([1, 2]), itemgetter('a', 'b')({'a': 1, 'b': x})",
        "itruediv": "itruediv(7, 2)",
        "ixor": "ixor({1, 2}, {2, 3})",
        "le": "le(2, 1), le(x, 0)",
        "length_hint": "length_hint([1, 2]), length_hint(5, 7)",
        "lshift": "lshift(1, 3)",
        "lt": "lt(2, 1), lt(x, 0)",
        "matmul": "matmul(x, x)",
        "methodcaller": "methodcaller('upper')('a'), methodcaller('sum', dim=0)(x)",
        "mod": "mod(7, 4), mod('%s', 'a')",
        "mul": "mul(2, x), mul([1], 2)",
        "ne": "ne(1, 2), ne('a', 'a')",
        "neg": "neg(2), neg(x)",
        "not_": "not_([]), not_(1)",
        "or_": "or_(4, 1), or_({1}, {2})",
        "pos": "pos(-2)",
        "pow": "pow(2, 3), pow(x, 2)",
        "rshift": "rshift(8, 2)",
        "setitem": "changed([1, 2], lambda v: setitem(v, 0, 5)), changed({}, lambda v: setitem(v, 'a', x))",
        "sub": "sub(3, 1), sub(x, 1)",
        "truediv": "truediv(7, 2), truediv(x, 2)",
        "truth": "truth([]), truth(1), truth('a')",
        "xor": "xor(6, 3), xor({1, 2}, {2, 3})",
    },
    "collections": {
        "ChainMap": "ChainMap({'a': 1}, {'b': x})['b'], len(ChainMap({1: 2}, {1: 3}).new_child())",
        "Counter": "Counter('abca').most_common(1), Counter('ab') + Counter('b'), Counter(a=2).total()",
        "OrderedDict": "OrderedDict(a=1, b=2), changed(OrderedDict(a=1, b=2), lambda d: d.move_to_end('a'))",
        "UserDict": "UserDict(a=x)['a'], UserDict({1: 2}).get(3, 4), len(UserDict(b=1))",
        "UserList": "UserList([1, 2])[0], UserList([3, 1]).count(1), UserList('ab').data",
        "UserString": "UserString('ab').upper().data, len(UserString('abc'))",
        "defaultdict": "changed(defaultdict(list), lambda d: d['a'].append(1))",
        "deque": "changed(deque([1, 2], maxlen=2), lambda d: d.append(x)), deque('abc')[1], "
        "deque('abcb').index('b', 2), changed(deque('ab'), lambda d: d.insert(1, 3))",
        "namedtuple": "Point(1, x).y, Point(1, 2)._replace(x=3), Point._make([1, 2])._asdict()",
    },
    "heapq": {
        "heapify": "changed([3, 1, 2, 0], heapify)",
        "heappop": "changed([1, 3, 2], heappop), heappop([1, 3, 2])",
        "heappush": "changed([1, 3], lambda heap: heappush(heap, 0))",
        "heappushpop": "heappushpop([1, 3], 2), changed([1, 3], lambda heap: heappushpop(heap, 2))",
        "heapreplace": "heapreplace([1, 3], 2), changed([1, 3], lambda heap: heapreplace(heap, 2))",
        "merge": "list(merge([1, 4], [2, 3])), list(merge('ca', 'b', reverse=True))",
        "nlargest": "nlargest(2, [1, 3, 2]), nlargest(1, 'abc', key=ord), nlargest(5, [1, 2])",
        "nsmallest": "nsmallest(2, [1, 3, 2]), nsmallest(2, ['bb', 'a', 'ccc'], key=len)",
        "heapify_max": "changed([1, 3, 2], heapify_max)",
        "heappop_max": "heappop_max([3, 1, 2])",
        "heappush_max": "changed([3, 1], lambda heap: heappush_max(heap, 4))",
        "heappushpop_max": "heappushpop_max([3, 1], 2)",
        "heapreplace_max": "heapreplace_max([3, 1], 2)",
    },
    "bisect": {
        "bisect": "bisect([1, 2, 2, 3], 2), bisect([1, 3], 2, 0, 1)",
        "bisect_left": "bisect_left([1, 2, 2, 3], 2), bisect_left('bd', 'd', lo=1)",
        "bisect_right": "bisect_right([1, 2, 3], 2, key=lambda n: -n)",
        "insort": "changed([1, 3], lambda v: insort(v, 2))",
        "insort_left": "changed([3, 1], lambda v: insort_left(v, 2, key=lambda n: -n))",
        "insort_right": "changed([1, 2.0, 3], lambda v: insort_right(v, 2))",
    },
    "random": {
        "Random": "drawn(Random(5).random, 3), Random(5).randrange(10), Random(3).getrandbits(20)",
        "SystemRandom": "SystemRandom.__name__",
        **{
            name: f"drawn(lambda: Random(7).{name}({given}), 2), seeded(lambda: {name}({given}))"
            for name, given in {
                "betavariate": "1.5, 2.0", "binomialvariate": "5, 0.4", "choice": "'abc'",
                "choices": "'abc', [1, 2, 3], k=3", "expovariate": "2.0", "gammavariate": "1.5, 2.0",
                "gauss": "0.0, 1.0", "getrandbits": "20", "lognormvariate": "0.0, 1.0",
                "normalvariate": "0.0, 1.0", "paretovariate": "2.0", "randbytes": "3",
                "randint": "1, 9", "random": "", "randrange": "3, 20, 2", "sample": "range(20), 4",
                "triangular": "1.0, 5.0, 2.0", "uniform": "1.0, 5.0", "vonmisesvariate": "0.0, 4.0",
                "weibullvariate": "1.0, 2.0",
            }.items()
        },
        "getstate": "seeded(lambda: len(getstate()[1]))",
        "seed": "seeded(lambda: random())",
        "setstate": "seeded(lambda: (state := getstate(), random(), setstate(state), random())[1::2])",
        "shuffle": "changed([1, 2, 3, 4], Random(2).shuffle), seeded(lambda: changed([1, 2, 3], shuffle))",
    },
    "string": {
        **{
            name: name
            for name in (
                "ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "hexdigits",
                "octdigits", "printable", "punctuation", "whitespace",
            )
        },
        "Formatter": "Formatter().format('{0}-{a:>3}-{1[k]}', 1, {'k': 2}, a='b')",
        "Template": "Template('$a and ${b}').substitute(a=1, b='c'), Template('$a $b').safe_substitute(a=1)",
        "capwords": "capwords('some  words'), capwords('a-b', '-')",
    },
    "contextlib": {
        "AbstractAsyncContextManager": "AbstractAsyncContextManager.__name__",
        "AbstractContextManager": "isinstance(nullcontext(), AbstractContextManager)",
        "AsyncExitStack": "AsyncExitStack.__name__",
        "ContextDecorator": "noted_area(2)",
        "ExitStack": "stacked(x)",
        "aclosing": "aclosing.__name__",
        "asynccontextmanager": "asynccontextmanager.__name__",
        "chdir": "chdir.__name__",
        "closing": "closed()",
        "contextmanager": "managed(x)",
        "nullcontext": "entered(nullcontext(3)), entered(nullcontext(x))",
        "redirect_stderr": "redirect_stderr.__name__",
        "redirect_stdout": "redirect_stdout.__name__",
        "suppress": "suppressed(KeyError), suppressed(LookupError, ValueError)",
    },
    "enum": {
        "CONFORM": "CONFORM.name", "CONTINUOUS": "CONTINUOUS.value", "EJECT": "EJECT.name",
        "KEEP": "KEEP.name", "NAMED_FLAGS": "NAMED_FLAGS.value", "STRICT": "STRICT.name",
        "UNIQUE": "UNIQUE.value",
        "Enum": "Colour.RED.name, Colour(2), Colour['RED'], list(Colour), Colour.RED in Colour",
        "EnumCheck": "EnumCheck.UNIQUE.value", "EnumMeta": "isinstance(Colour, EnumMeta)",
        "EnumDict": "EnumDict.__name__",
        "EnumType": "isinstance(Colour, EnumType), len(Colour)",
        "Flag": "Access.READ | Access.WRITE, Access.READ in Access.ALL, ~Access.READ",
        "FlagBoundary": "list(FlagBoundary)[0].name",
        "IntEnum": "Level.LOW + 1, Level.LOW < Level.HIGH, Level(2).name, x[Level.LOW]",
        "IntFlag": "Bits.A | 4, Bits(3), Bits.A.value",
        "ReprEnum": "ReprEnum.__name__",
        "StrEnum": "Name.FIRST + '!', Name.FIRST.upper(), str(Name.FIRST), f'{Name.FIRST}'",
        "auto": "Name.FIRST.value, Level.HIGH.value",
        "bin": "bin(5), bin(-3)",
        "global_enum": "global_enum.__name__",
        "global_enum_repr": "global_enum_repr(Colour.RED)",
        "global_flag_repr": "global_flag_repr(Access.READ)",
        "global_str": "global_str(Colour.RED)",
        "member": "member(3).value", "nonmember": "nonmember(3).value",
        "pickle_by_enum_name": "pickle_by_enum_name(Colour.RED, 2)[1][1]",
        "pickle_by_global_name": "pickle_by_global_name(Colour.RED, 2)",
        "property": "Colour.RED.double",
        "show_flag_values": "show_flag_values(5)",
        "unique": "unique(Colour) is Colour", "verify": "verify(UNIQUE)(Colour) is Colour",
    },
    "dataclasses": {
        "Field": "isinstance(fields(Record)[0], Field)",
        "FrozenInstanceError": "frozen_text()",
        "InitVar": "Record(1, [x], start=2).total",
        "KW_ONLY": "Record(1, [], start=3, scale=4).scale",
        "MISSING": "fields(Record)[0].default is MISSING",
        "asdict": "asdict(Record(1, [2, {'a': 3}]))",
        "astuple": "astuple(Record(1, [(2, 3)]))",
        "dataclass": "Record(1, [2]) == Record(1, [2]), repr(Record(1, [2])), Frozen(1) < Frozen(2)",
        "field": "Record(1).parts, [f.name for f in fields(Record)]",
        "fields": "[(f.name, f.kw_only) for f in fields(Record(1))]",
        "is_dataclass": "is_dataclass(Record), is_dataclass(Record(1)), is_dataclass(3)",
        "make_dataclass": "make_dataclass.__name__",
        "replace": "replace(Frozen(1), size=2), replace(Frozen(1, x), size=3).where",
    },
}  # fmt: skip

# Not of one graph, whatever the program: what must run each time, or makes a class.
BREAKS = {
    ("random", name) for name in PROGRAMS["random"] if name not in ("Random", "SystemRandom")
} | {("functools", "cache"), ("functools", "lru_cache")}


def changed(value, change):
    change(value)
    return value


def drawn(draw, count):
    return [draw() for _ in range(count)]


def seeded(draw):
    random.seed(11)
    return draw()


@functools.cache
def cached_square(number):
    return number * number


@functools.lru_cache(maxsize=2)
def recent_square(number):
    return number * number


def area(side):
    """An area."""
    return side * side


@functools.singledispatch
def described(value):
    return "thing"


@described.register
def _(value: int):
    return "number"


@described.register(str)
def _(value):
    return "text"


class Lazy:
    def __init__(self, value):
        self.value = value

    @functools.cached_property
    def double(self):
        return self.value * 2


@functools.total_ordering
class Shape:
    def __init__(self, side):
        self.side = side

    def __eq__(self, other):
        return self.side == other.side

    def __lt__(self, other):
        return self.side < other.side

    def scale(self, factor):
        return self.side * factor

    grown = functools.partialmethod(scale, 10)

    @functools.singledispatchmethod
    def described(self, value):
        return "thing", self.side

    @described.register
    def _(self, value: int):
        return "number", self.side


Point = collections.namedtuple("Point", "x y")


class Noted(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


noted_area = Noted()(area)


def stacked(x):
    seen = []
    with contextlib.ExitStack() as stack:
        value = stack.enter_context(contextlib.nullcontext(2))
        stack.callback(seen.append, value)
        stack.push(lambda *error: bool(seen.append(error[0])))
        moved = stack.pop_all()
    moved.close()
    return seen, x * value


class Door:
    def __init__(self):
        self.is_open = True

    def close(self):
        self.is_open = False


def closed():
    with contextlib.closing(Door()) as door:
        before = door.is_open
    return before, door.is_open


@contextlib.contextmanager
def doubling(value):
    with contextlib.suppress(ValueError):
        yield value * 2


def managed(x):
    with doubling(x) as doubled:
        raise ValueError
    return doubled


def entered(manager):
    with manager as value:
        return value


def suppressed(*kinds):
    reached = []
    with contextlib.suppress(*kinds):
        reached.append(1)
        {}["a"]
    return reached


class Colour(enum.Enum):
    RED = 1
    GREEN = 2

    @enum.property
    def double(self):
        return self.value * 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    ALL = 3


class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = enum.auto()


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Name(enum.StrEnum):
    FIRST = enum.auto()


@dataclasses.dataclass
class Record:
    size: int
    parts: list[Any] = dataclasses.field(default_factory=list)
    start: dataclasses.InitVar[int] = 0
    _: dataclasses.KW_ONLY
    scale: int = 2

    def __post_init__(self, start):
        self.total = start + self.size


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    size: int
    where: Any = None


def frozen_text():
    try:
        Frozen(1).size = 2
    except dataclasses.FrozenInstanceError as error:
        return str(error)


MODULES = {
    module.__name__: module
    for module in (
        bisect, collections, contextlib, dataclasses, enum, functools, heapq, itertools, operator,
        random, string,
    )
}  # fmt: skip


def public(module: Any) -> set[str]:
    listed = getattr(module, "__all__", None)
    return set(listed or (name for name in vars(module) if not name.startswith("_")))


def program(module: str, text: str) -> Any:
    namespace = {
        **globals(),
        **{name: getattr(MODULES[module], name) for name in public(MODULES[module])},
    }
    code = compile(f"lambda x: (x + 1, ({text}))", f"<program of {module}>", "eval")
    return eval(code, namespace)


ROWS = [
    (module, name)
    for module, programs in PROGRAMS.items()
    for name in programs
    if hasattr(MODULES[module], name)
]


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_a_program(module: str) -> None:
    assert public(MODULES[module]) <= PROGRAMS[module].keys()


@pytest.mark.parametrize(("module", "name"), ROWS)
def test_it_is_as_in_cpython(module: str, name: str) -> None:
    function = program(module, PROGRAMS[module][name])
    check(function, [(torch.tensor([1.0, -2.0]),)], fullgraph=(module, name) not in BREAKS)
