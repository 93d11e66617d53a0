"""The C extension where it is built, and what of torch it can read."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import CellType, ModuleType
from typing import Any, Protocol

from ._torch import NativeTorch, connect
from .global_state import GlobalState


class GuardCheck(Protocol):
    """A compiled guard set."""

    def check(
        self,
        arguments: tuple[Any, ...],
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        closure: tuple[CellType, ...] | None,
        /,
    ) -> bool:
        """Whether every guard holds; one that raises does not hold.

        ``arguments`` are the values of the frame's argument slots, in the order of the names that the
        set was compiled with; ``closure`` is the function's tuple of cells.

        :raises ValueError: another number of arguments than the set was compiled with.
        """
        ...


class GuardSelection(Protocol):
    """Several compiled guard sets of one frame: which of them holds."""

    @property
    def order(self) -> tuple[int, ...]:
        """The sets' numbers in the order in which they are tried: the one found last first."""
        ...

    def find(
        self,
        arguments: tuple[Any, ...],
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        closure: tuple[CellType, ...] | None,
        /,
    ) -> int | None:
        """The number of the first set that holds, None when none does.

        What several sets need is read and checked once, unless code of the user's (a property, a predicate
        in Python) has run in between. Arguments and errors are those of :meth:`GuardCheck.check`.
        """
        ...


def _import_native() -> ModuleType | None:
    try:
        return importlib.import_module("._native", __package__)
    except ModuleNotFoundError:
        return None


NATIVE = _import_native()
"""The extension; None where it isn't built, and then checks run in Python."""

_connected = connect(NATIVE, GlobalState.current) if NATIVE is not None else "no extension is built"

NATIVE_TORCH: NativeTorch | None = _connected if isinstance(_connected, NativeTorch) else None
"""torch's numbers; None where the extension can't read tensors, and then Python reads them."""

native_problem: str | None = None if isinstance(_connected, NativeTorch) else _connected
"""Why tensors are read in Python; None when they are read natively."""


def native_available() -> bool:
    """Whether checks run in the C extension rather than in Python."""
    return NATIVE is not None
