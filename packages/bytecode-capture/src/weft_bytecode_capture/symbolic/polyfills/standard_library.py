"""Functions of the standard library: those that CPython has in C alone, and in C and Python."""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import importlib.util
import operator
import os
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

from ..models.table import model_of, polyfill


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


@polyfill(os.fspath)
def fspath(path: Any) -> str | bytes:
    if isinstance(path, (str, bytes)):
        return path
    kind = type(path)
    if not hasattr(kind, "__fspath__"):
        raise TypeError(f"expected str, bytes or os.PathLike object, not {kind.__name__}")
    found = kind.__fspath__(path)
    if not isinstance(found, (str, bytes)):
        given = type(found).__name__
        raise TypeError(
            f"expected {kind.__name__}.__fspath__() to return str or bytes, not {given}"
        )
    return found


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


# Functions that CPython has both in C and in Python: the Python ones are evaluated.
#
# A module of the standard library takes what its accelerator in C has, where there is one.  Run without that,
# it gives its own versions, which CPython's tests hold to the same behaviour.


_ACCELERATORS = {
    "bisect": "_bisect",
    "functools": "_functools",
    "heapq": "_heapq",
    "operator": "_operator",
}

# Of another result or another error than in C.
_DIFFERENT = {("functools", "cmp_to_key"), ("operator", "index")}


def python_version(module: str, accelerator: str) -> dict[str, Any]:
    """The names of a module that has not found its accelerator."""

    def import_module(name: str, *rest: Any) -> Any:
        if name == accelerator:
            raise ImportError(name)
        return builtins.__import__(name, *rest)

    spec = importlib.util.find_spec(module)
    assert spec is not None
    loader: Any = spec.loader
    names = {"__name__": module, "__builtins__": {**vars(builtins), "__import__": import_module}}
    exec(loader.get_code(module), names)
    names["__builtins__"] = vars(builtins)
    return names


def _register(module: str, accelerator: str) -> None:
    versions = python_version(module, accelerator)
    for name, function in vars(importlib.import_module(accelerator)).items():
        version = versions.get(name)
        is_known = model_of(function) is not None or (module, name) in _DIFFERENT
        if isinstance(version, types.FunctionType) and callable(function) and not is_known:
            polyfill(function)(version)


for _module, _accelerator in _ACCELERATORS.items():
    _register(_module, _accelerator)


# Functions of ``re`` that take their last parameters in other ways by version: methods of a pattern.


@polyfill(re.split)
def split(pattern: Any, string: Any, maxsplit: int = 0, flags: int = 0) -> list[Any]:
    return re.compile(pattern, flags).split(string, maxsplit)


@polyfill(re.sub)
def sub(
    pattern: Any, repl: str | Callable[..., Any], string: Any, count: int = 0, flags: int = 0
) -> Any:
    return re.compile(pattern, flags).sub(repl, string, count)


@polyfill(re.subn)
def subn(
    pattern: Any, repl: str | Callable[..., Any], string: Any, count: int = 0, flags: int = 0
) -> Any:
    return re.compile(pattern, flags).subn(repl, string, count)
