"""Which of several guard sets of one frame holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CellType
from typing import Any

from .compilation import is_native, select_native
from .native import GuardCheck, GuardSelection


def select(checks: Sequence[GuardCheck]) -> GuardSelection:
    """Checks of one frame as one: its ``find`` gives the number of a check that holds.

    Native checks are merged: what several of them need is read and checked once in a lookup, and a check
    that needs what has failed is passed over.

    :raises ValueError: the checks were compiled for frames with other arguments or free variables.
    """
    given = tuple(checks)
    if given and all(map(is_native, given)):
        return select_native(given)
    return PythonGuardSelection(given)


class PythonGuardSelection:
    """Checks tried one after the other: the meaning that merged ones are tested against."""

    def __init__(self, checks: tuple[GuardCheck, ...]) -> None:
        self._checks = checks
        self._order = tuple(range(len(checks)))

    @property
    def order(self) -> tuple[int, ...]:
        return self._order

    def find(
        self,
        arguments: tuple[Any, ...],
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        closure: tuple[CellType, ...] | None,
        /,
    ) -> int | None:
        for number in self._order:
            if self._checks[number].check(arguments, globals, builtins, closure):
                rest = (other for other in self._order if other != number)
                self._order = (number, *rest)
                return number
        return None
