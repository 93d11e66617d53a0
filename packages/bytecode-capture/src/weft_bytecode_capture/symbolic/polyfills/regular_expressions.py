"""Functions of ``re``: methods of a compiled pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ..models import polyfill


@polyfill(re.match)
def match(pattern: Any, string: Any, flags: int = 0) -> Any:
    return re.compile(pattern, flags).match(string)


@polyfill(re.fullmatch)
def fullmatch(pattern: Any, string: Any, flags: int = 0) -> Any:
    return re.compile(pattern, flags).fullmatch(string)


@polyfill(re.search)
def search(pattern: Any, string: Any, flags: int = 0) -> Any:
    return re.compile(pattern, flags).search(string)


@polyfill(re.findall)
def findall(pattern: Any, string: Any, flags: int = 0) -> list[Any]:
    return re.compile(pattern, flags).findall(string)


@polyfill(re.finditer)
def finditer(pattern: Any, string: Any, flags: int = 0) -> Iterator[Any]:
    return re.compile(pattern, flags).finditer(string)


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
