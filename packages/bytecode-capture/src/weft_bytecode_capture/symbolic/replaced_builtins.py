"""Whether the program has replaced builtins that compiling itself calls, in weft and in torch."""

from __future__ import annotations

import builtins

_FOR_THE_USER = ("breakpoint", "exit", "help", "input", "open", "print", "quit")
_ORIGINAL = tuple(
    (name, value)
    for name, value in vars(builtins).items()
    if not (name.startswith("_") or name in _FOR_THE_USER)
    and not (isinstance(value, type) and issubclass(value, BaseException))
    and value.__class__.__module__ == "builtins"
)


def builtins_replaced() -> bool:
    """It calls none of them."""
    current = builtins.__dict__
    for name, value in _ORIGINAL:  # noqa: SIM110
        if current.get(name) is not value:
            return True
    return False
