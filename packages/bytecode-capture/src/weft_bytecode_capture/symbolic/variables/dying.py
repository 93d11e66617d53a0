"""Objects that somebody can see dying, through ``__del__`` or a weak reference.

Effects are replayed after the graph, so such an object would die later than the program has it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from .values import find_raw

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from .base import Variable


def has_finalizer(kind: type) -> bool:
    """Whether instances run code when they die."""
    return find_raw(kind, "__del__") is not None


def require_quiet_end(value: Any, owner: Variable) -> None:
    """Unsupported if ``value``, about to be taken out of an object from outside, runs code as it dies."""
    if has_finalizer(type(value)):
        raise Unsupported("deletion of an object that may be seen dying", f"of {owner!r}")


def may_be_seen_dying(evaluator: Evaluator, variable: Variable) -> bool:
    """Whether an object from outside has a ``__del__`` or weak references, or a list holds such."""
    from .sequences import SequenceVariable

    if variable.is_constant():
        return False
    if isinstance(variable, SequenceVariable):
        return any(map(has_finalizer, variable.element_types()))
    if variable.source is None:
        return False
    rows = evaluator.builder.wrapped()
    value = next((value for value, known, _ in rows if known is variable), None)
    return has_finalizer(type(value)) or weakref.getweakrefcount(value) > 0
