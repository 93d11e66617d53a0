"""Functions of the standard library that CPython has in C alone."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Iterable
from typing import Any

from ..models.table import polyfill


@polyfill(vars(collections)["_count_elements"])
def count_elements(mapping: Any, iterable: Iterable[Any], /) -> None:
    """What ``Counter.update`` does with an iterable."""
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


@polyfill(vars(collections.deque)["index"])
def deque_index(
    self: collections.deque[Any], value: Any, start: int = 0, stop: int | None = None, /
) -> int:
    for position in range(*slice(start, stop).indices(len(self))):
        if value in (self[position],):
            return position
    raise ValueError(f"{value!r} is not in deque")


@polyfill(vars(collections.deque)["insert"])
def deque_insert(self: collections.deque[Any], index: int, value: Any, /) -> None:
    if self.maxlen is not None and len(self) >= self.maxlen:
        raise IndexError("deque already at its maximum size")
    items = list(self)
    items.insert(index, value)
    self.clear()
    self.extend(items)


@polyfill(operator.countOf)
def count_of(a: Iterable[Any], b: Any, /) -> int:
    count = 0
    for element in a:
        if b in (element,):  # the same object, or an equal one
            count += 1
    return count


@polyfill(operator.indexOf)
def index_of(a: Iterable[Any], b: Any, /) -> int:
    for position, element in enumerate(a):
        if b in (element,):
            return position
    raise ValueError("sequence.index(x): x not in sequence")


def generic_method(method: Any, instance: Any, owner: Any = None) -> Any:
    """``singledispatchmethod.__get__`` as it is without a cache by weak references, which 3.13 has."""
    dispatch = method.dispatcher.dispatch
    name = getattr(method.func, "__name__", "singledispatchmethod method")

    def _method(*arguments: Any, **keywords: Any) -> Any:
        if not arguments:
            raise TypeError(f"{name} requires at least 1 positional argument")
        return dispatch(arguments[0].__class__).__get__(instance, owner)(*arguments, **keywords)

    _method.__isabstractmethod__ = method.__isabstractmethod__  # type: ignore[attr-defined]
    _method.register = method.register  # type: ignore[attr-defined]
    return functools.update_wrapper(_method, method.func)


if "_method_cache" in vars(functools.singledispatchmethod(len)):
    polyfill(functools.singledispatchmethod.__get__)(generic_method)
