"""Arguments and results as trees: containers of leaves, described as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tree = Any
"""``number`` of a leaf, or ``[kind, parts]``; a mapping's parts are pairs of key and tree."""

_PLAIN_KEYS = (str, int, bool)


class Record(dict[str, Any]):
    """A result that was a mapping or dataclass of another package: its items by name and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def flatten(value: Any, leaves: list[Any]) -> Tree:
    """Describe ``value``, whose leaves are appended to ``leaves``."""
    if type(value) in (list, tuple):
        return [type(value).__name__, [flatten(part, leaves) for part in value]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ["record", _pairs(zip(value._fields, value, strict=True), leaves)]
    if isinstance(value, Mapping) and all(type(key) in _PLAIN_KEYS for key in value):
        kind = "dict" if type(value) is dict else "record"
        return [kind, _pairs(iter(value.items()), leaves)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return ["record", _pairs(fields, leaves)]
    leaves.append(value)
    return len(leaves) - 1


def _pairs(items: Iterator[tuple[Any, Any]], leaves: list[Any]) -> list[Any]:
    return [[key, flatten(value, leaves)] for key, value in items]


def unflatten(tree: Tree, leaf: Callable[[int], Any]) -> Any:
    """The value that ``tree`` describes, of the leaves that ``leaf`` gives by number."""
    if not isinstance(tree, list):
        return leaf(tree)
    kind, parts = tree
    if kind in ("list", "tuple"):
        made = [unflatten(part, leaf) for part in parts]
        return made if kind == "list" else tuple(made)
    items = {key: unflatten(part, leaf) for key, part in parts}
    return Record(items) if kind == "record" else items
