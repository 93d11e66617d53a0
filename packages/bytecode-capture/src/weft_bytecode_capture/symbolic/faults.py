"""Faults of our own code where errors of operators, or of the program, are expected."""

from __future__ import annotations

import traceback

from .graph import node_calls

_PACKAGE = __name__.partition(".")[0]

_SIGNS = (AssertionError, AttributeError, LookupError, NameError, ZeroDivisionError)
"""What code in C that we call for the program raises of fakes is of other classes, but for IndexError."""


def raise_fault(error: Exception) -> None:
    """Raise ``error`` again if a line of this package has raised it, none that it called for the program.

    Who takes an operator's errors for refusals, by which eager decides, would hide a fault so.
    """
    if not isinstance(error, _SIGNS) or isinstance(error, IndexError):
        return
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    if module.partition(".")[0] == _PACKAGE and module != node_calls.__name__:
        raise error
