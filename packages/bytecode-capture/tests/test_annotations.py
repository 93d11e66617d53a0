"""Type annotations used as values, as validators of configurations do."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

import pytest
from differential import check


def kinds(x):
    union, optional = ANNOTATIONS["union"], ANNOTATIONS["optional"]
    return isinstance(x, union), isinstance(x, optional), isinstance(x, (list, union))


ANNOTATIONS = {
    "union": int | None,
    "optional": Optional[int],  # noqa: UP045
    "list": list[int],
    "mapping": dict[str, list[int]],
    "old list": typing.List[int],  # noqa: UP006
    "literal": Literal["a", 1],
    "annotated": Annotated[int, "unit"],
    "any": Any,
}


def taken_apart(x):
    found = {}
    for name, kind in ANNOTATIONS.items():
        found[name] = get_origin(kind), get_args(kind), kind is Any
    return found, x


def looked_up(x):
    names = {Union: "union", list: "list", Literal: "literal", None: "plain"}
    return [
        names.get(get_origin(kind), "other")
        for kind in (x, int, ANNOTATIONS["list"], ANNOTATIONS["literal"])
    ]


def generic(x):
    numbers = list[int]()
    numbers.append(x)
    return numbers, list[int] == list[int], hash(list[int]) == hash(list[int])


def of_classes(x):
    pair = tuple[Options, float]
    held = typing.cast(list[Options], [x])
    return (
        held,
        list[Options] == list[Options],
        get_args(pair)[1] is float,
        pair == tuple[Options, int],
    )


@dataclasses.dataclass
class Options:
    size: int | None = None
    names: list[str] = dataclasses.field(default_factory=list)


TYPES = {field.name: eval(field.type) for field in dataclasses.fields(Options)}


def validated(options, size):
    kind = TYPES["size"]
    if not any(isinstance(size, part) for part in get_args(kind)):
        raise TypeError(f"size is {size}, not {kind}")
    options.size = size
    return options


@pytest.mark.parametrize("function", [kinds, taken_apart], ids=lambda f: f.__name__)
def test_one_graph(function):
    check(function, [(1,), ("a",), (None,), (2.5,)])


def test_origins_are_keys():
    check(looked_up, [(int,), (str,)])


def test_generic_classes_are_called():
    check(generic, [(1,), (2,)], fullgraph=False)


def test_classes_in_brackets():
    check(of_classes, [(1,), (2,)])


def test_validators():
    check(validated, [(Options(), 1), (Options(2), None), (Options(), "no")])
