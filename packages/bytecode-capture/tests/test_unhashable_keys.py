"""Errors of keys that have no hash, which say on some versions whether a dict or a set was to have them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
from differential import check


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


class Equal:
    """Has no hash because it can be compared."""

    def __eq__(self, other: object) -> bool:
        return True


KEYS: dict[str, Callable[[], Any]] = {
    "list": list,
    "list in a tuple": lambda: (1, []),
    "dict": dict,
    "instance": Unhashable,
    "compared instance": Equal,
    "instance in a tuple": lambda: (Unhashable(),),
}

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda key: {1}.add(key),
    "display": lambda key: {1, key},
    "set": lambda key: set([key]),  # noqa: C405
    "frozenset": lambda key: frozenset([key]),
    "set comprehension": lambda key: {item for item in [key]},  # noqa: C416
    "in a set": lambda key: key in {1},
    "discard": lambda key: {1}.discard(key),
    "remove": lambda key: {1}.remove(key),
    "update": lambda key: {1}.update([key]),
    "union": lambda key: {1}.union([key]),
    "intersection": lambda key: {1}.intersection([key]),
    "intersection update": lambda key: {1}.intersection_update([key]),
    "symmetric difference": lambda key: {1}.symmetric_difference([key]),
    "is subset": lambda key: {1}.issubset([key]),
    "is superset": lambda key: {1}.issuperset([key]),
    "is disjoint": lambda key: {1}.isdisjoint([key]),
    "item": lambda key: {1: 2}[key],
    "store": lambda key: {1: 2}.__setitem__(key, 1),
    "delete": lambda key: {1: 2}.__delitem__(key),
    "in a dict": lambda key: key in {1: 2},
    "get": lambda key: {1: 2}.get(key),
    "setdefault": lambda key: {1: 2}.setdefault(key),
    "pop": lambda key: {1: 2}.pop(key),
    "dict display": lambda key: {key: 1},
    "dict of pairs": lambda key: dict([(key, 1)]),  # noqa: C406
    "from keys": lambda key: dict.fromkeys([key]),
    "dict update": lambda key: {1: 2}.update([(key, 1)]),
    "dict comprehension": lambda key: {item: 1 for item in [key]},  # noqa: C420
    "in keys": lambda key: key in {1: 2}.keys(),  # noqa: SIM118
    "defaultdict": lambda key: collections.defaultdict(int)[key],
    "hash": hash,
}


@pytest.mark.parametrize("key", KEYS)
def test_errors_of_unhashable_keys(key: str) -> None:
    make = KEYS[key]

    def program() -> list[str]:
        texts = []
        for operation in OPERATIONS.values():
            try:
                texts.append(str(operation(make())))
            except TypeError as error:
                texts.append(f"{type(error).__name__}: {error}, {error.__context__!r}")
        return texts

    check(program, [()], fullgraph=key != "instance in a tuple")  # whose hash() is a break
