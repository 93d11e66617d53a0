"""Operations on objects that have no method for them raise what CPython raises."""

import collections
import contextlib
import enum
import operator
import types
from typing import NamedTuple

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(3.0)


class Number(enum.IntEnum):
    ONE = 1


class Indexed:
    def __index__(self):
        return 2


class Plain:
    pass


VALUES = [
    [], [1], (1,), {}, {"a": 1}, {1}, frozenset([1]), slice(1), int, len, collections.deque([1]),
    collections.OrderedDict(a=1), Number.ONE, Indexed(), Plain(), None, 1, "a", b"a", range(2), lambda: 0,
]  # fmt: skip


def delete(value):
    del value[0]


def store(value):
    value[0] = 1


def store_part(value):
    value[0:1] = [1]


OPERATIONS = {
    "subscript": lambda value: value[0],
    "part": lambda value: value[:1],
    "store": store,
    "store a part": store_part,
    "delete": delete,
    "contains": lambda value: 0 in value,
    "neg": lambda value: -value,
    "pos": operator.pos,
    "invert": lambda value: ~value,
    "abs": abs,
    "int": int,
    "float": float,
    "complex": complex,
    "unpacked keys": lambda value: {**value},
    "keywords": lambda value: (lambda **named: named)(**value),
    "positions": lambda value: (lambda *given: given)(*value),
    "more positions": lambda value: (lambda *given: given)(1, *value),
    "positions of a builtin": lambda value: max(*value),
    "positions of a method": lambda value: {}.get(*value),
    "added to a text": lambda value: "a" + value,
    "added to a list": lambda value: [1] + value,
    "times": lambda value: [1] * value,
    "called": lambda value: value(),
    "summed up": lambda value: sum(["a"], value),
    "class": lambda value: isinstance(3, value),
    "reversed": lambda value: list(reversed(value)),
    "no base": lambda value: issubclass(value, ()),
    "base": lambda value: issubclass(value, (int, str)),
    "no place": lambda value: "12" % value,  # noqa: F507, UP031
    "one place": lambda value: "%d!" % value,  # noqa: UP031
    "named place": lambda value: "%(a)s" % value,  # noqa: UP031
    "two places": lambda value: "%s %s" % (value,),  # noqa: F507, UP031
    "specification": lambda value: f"{value:3q}",
    "two fields": lambda value: "{} {}".format(value),  # noqa: F524
    "named field": lambda value: "{a.b}".format(a=value),  # noqa: UP032
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_errors_are_cpythons(name):
    operation = OPERATIONS[name]

    def function(x, value):
        try:
            result = operation(value)
        except (TypeError, AttributeError, ValueError, KeyError, IndexError) as error:
            return x, type(error), str(error)
        return x + 1, result

    for value in VALUES:
        if name in ("called", "store") and value in (int, len):
            continue
        check(function, [(X, value)], fullgraph=False)


def test_a_handler_of_type_errors_is_used():
    def function(x, values):
        found = []
        for value in values:
            try:
                found.append(float(value))
            except (TypeError, ValueError):
                found.append(None)
        return x + len(found), found

    check(function, [(X, [1, "2", [], None, {}, "a"])])


def attributes(x, make):
    value, messages = make(x), []
    try:
        value.nothing  # noqa: B018 - what it raises
    except AttributeError as error:
        messages.append(str(error))
    try:
        value.nothing = 1
        messages.append(value.nothing)
    except AttributeError as error:
        messages.append(str(error))
    return x + 1, messages


@pytest.mark.parametrize(
    "make",
    [
        lambda x: collections.deque([x]),
        lambda x: collections.OrderedDict(),
        lambda x: collections.Counter(),
        lambda x: x.size(),
        lambda x: x.max(0),
        lambda x: x.device,
        lambda x: torch.finfo(x.dtype),
        lambda x: types.SimpleNamespace(),
        lambda x: contextlib.nullcontext(),
        lambda x: [x],
        lambda x: range(3),
        lambda x: Plain(),
    ],
)
def test_missing_attributes(make):
    check(attributes, [(X, make)])


class Slots:
    __slots__ = ("unset",)
    shared = 1

    def method(self):
        return None

    @property
    def read(self):
        return 1


class Pair(NamedTuple):
    left: int = 1


class ListWithSlots(list):
    __slots__ = ()


class ListOfOwn(list):
    pass


PLACES = {
    "list": (list, "nothing append"),
    "tuple": (tuple, "nothing index"),
    "slots": (Slots, "nothing unset shared method read"),
    "named tuple": (Pair, "nothing index left"),
    "list with slots": (ListWithSlots, "nothing append"),
    "list of own": (ListOfOwn, "append"),
    "plain": (Plain, "nothing"),
    "size": (torch.Size, "nothing numel"),
    "results": (lambda: X.max(0), "nothing index values"),
    "deque": (collections.deque, "nothing append maxlen"),
    "dict": (dict, "nothing keys"),
    "counter": (collections.Counter, "nothing total"),
    "int": (lambda: 3, "nothing real"),
    "range": (lambda: range(3), "nothing start"),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, (_, names) in PLACES.items() for name in names.split()],
)
def test_attributes_that_have_no_place(kind, name):
    """What each write and deletion raises; one that raises nothing is read after it."""
    source = f"""
def function(x, value):
    found = []
    try:
        value.{name} = 1
        found.append(value.{name})
    except AttributeError as error:
        found += [str(error), error.name]
    try:
        del value.{name}
    except AttributeError as error:
        found += [str(error), error.name]
    try:
        del value.{name}
    except AttributeError as error:
        found.append(str(error))
    return x + 1, found

def made_inside(x):
    return function(x, make())
"""
    make, _ = PLACES[kind]
    scope = {"make": make}
    exec(source, scope)
    check(scope["function"], [(X, make())], fullgraph=False)
    check(scope["made_inside"], [(X,)], fullgraph=False)


def test_a_class_attribute_that_comes_and_goes():
    """What is read-only for as long as the class has it."""

    class Changed:
        __slots__ = ()

    def function(x, value):
        try:
            value.shared = 1
        except AttributeError as error:
            return x + 1, str(error)
        return x, None

    compiled = compile_frames(function, run_graph, CaptureOptions())
    for action in (None, 1, Changed.__init__, None, 2):
        if action is not None:
            Changed.shared = action
        elif "shared" in vars(Changed):
            del Changed.shared
        assert compiled(X, Changed())[1] == function(X, Changed())[1]


def test_a_missing_attribute_of_a_class():
    def ask(x, kind):
        try:
            return kind.nothing
        except AttributeError as error:
            return x + 1, str(error)

    check(ask, [(X, kind) for kind in (collections.deque, Plain, int, torch.Size)])
