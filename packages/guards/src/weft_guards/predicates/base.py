"""Predicates: what must hold of the value at a source for compiled code to be used again.

:meth:`Predicate.holds` is the meaning of a predicate; the native check computes the same and is tested
against it.  A predicate that raises does not hold.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..operations import NativeStep, Registers
from ..sources import Scope, Source

PYTHON_COST = 60
"""Of a check that runs in Python, in the unit of :attr:`Predicate.cost`."""


def short_text(value: object, limit: int = 120) -> str:
    """``repr(value)``, or the type where that fails, cut to ``limit`` characters."""
    try:
        text = repr(value)
    except Exception as error:  # of the program's ``__repr__``
        text = f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def type_name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


@dataclass(frozen=True)
class Predicate:
    """Base class of all predicates: all that is known of a kind of guard stands in its class.

    A further one defines :meth:`holds` and is checked in Python.
    """

    cost: ClassVar[int] = PYTHON_COST
    """The cost of a check, about in units of 5 ns."""
    advice: ClassVar[str | None] = None
    """What a user can do so that it holds again; see :meth:`hint`."""

    def holds(self, value: Any, scope: Scope) -> bool:
        raise NotImplementedError(type(self).__name__)

    def identity(self) -> Hashable:
        """Equal for two predicates of one type that say the same, while both live."""
        return self

    def expected_text(self) -> str:
        """What is expected, for a failure's message."""
        return str(self)

    def found_text(self, value: Any, scope: Scope) -> str:
        """What was found in its place."""
        return short_text(value)

    def hint(self, source: Source, value: Any) -> str | None:
        """What would keep it from failing on ``value`` at ``source``; None: nothing general can be said."""
        return self.advice

    def native_step(self, registers: Registers) -> NativeStep | None:
        """The step of the native check; None: :meth:`holds` is called."""
        return None

    def references(self) -> Iterable[weakref.ref[Any]]:
        """Weak references to the objects without which it never holds again."""
        return ()

    def sources(self) -> tuple[Source, ...]:
        """The sources, besides the guard's own, that it reads: such guards are checked last."""
        return ()

    def implies_type(self, kind: type) -> bool:
        """Whether what it holds of is of this very type."""
        return False

    @property
    def is_lasting(self) -> bool:
        """Whether it holds of an object forever if it does once."""
        return False

    @property
    def follows_from_keys(self) -> bool:
        """Whether it follows from a dict's keys, no code of a key's being run."""
        return False
