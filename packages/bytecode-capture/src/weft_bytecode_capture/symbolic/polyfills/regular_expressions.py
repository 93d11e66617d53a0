"""Functions of ``re`` that take their last parameters in other ways by version: methods of a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..models.table import polyfill


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
