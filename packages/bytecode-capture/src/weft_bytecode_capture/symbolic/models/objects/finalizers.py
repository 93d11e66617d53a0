"""Objects whose lifetime a program observes, through ``__del__`` or a weak reference.

Effects are replayed after the graph, so such an object would die later than the program has it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from weft_guards import ArgumentSource

from ....unsupported import Unsupported
from ...decode import DecodedInstruction
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.python_protocols import has_finalizer
from ..containers.sequences import SequenceVariable
from ..functions.tracing import FrameIsSeen


def require_no_finalizer(value: Any, owner: Variable) -> None:
    """Unsupported if ``value``, about to be taken out of an object from outside, runs code as it dies."""
    if has_finalizer(type(value)):
        raise Unsupported("deletion of an object with an observable lifetime", f"of {owner!r}")


def check_dropped(evaluator: Frame, variable: Variable | None) -> None:
    """Unsupported if the frame lets go of an argument that runs code as it dies.

    So does a resume function of a value of the interrupted frame's stack.
    """
    if variable is None or not isinstance(variable.source, ArgumentSource):
        return
    value = getattr(variable, "value", None)
    kind = getattr(variable, "kind", None) or type(value)
    runs_code = isinstance(kind, type) and (has_finalizer(kind) or _drives_generator(value))
    if runs_code and not _is_held(evaluator, variable):
        raise Unsupported("deletion of an object with an observable lifetime", repr(variable))


def check_moved(variable: Variable, following: DecodedInstruction) -> None:
    """Leave a resume function to CPython that gives an object which runs code as it dies to ``following``.

    ``variable`` is of the interrupted frame's stack, which lets go of it there; a call's arguments don't.
    """
    if not isinstance(variable.source, ArgumentSource) or following.name in _BINDS:
        return
    kind = getattr(variable, "kind", None)
    if isinstance(kind, type) and has_finalizer(kind):
        raise FrameIsSeen("deletion of an object with an observable lifetime", repr(variable))


_BINDS = frozenset({"STORE_FAST", "POP_TOP", "RETURN_VALUE"})


def _drives_generator(value: Any) -> bool:
    """Whether an iterator over others (``zip``, ``map``) has one that runs code as it dies."""
    if type(value).__module__ not in ("builtins", "itertools"):
        return False
    if not isinstance(value, (Iterator, tuple)):
        return False
    parts = [part for part in gc.get_referents(value) if isinstance(part, (Iterator, tuple))]
    return any(has_finalizer(type(part)) or _drives_generator(part) for part in parts)


def _is_held(evaluator: Frame, variable: Variable) -> bool:
    """Whether the frame still has a variable on its stack or in a local."""
    held = (*evaluator.stack, *evaluator.locals.values())
    return any(variable is other for other in held)


def has_observable_lifetime(evaluator: Frame, variable: Variable) -> bool:
    """Whether an object that the frame lets go of has a ``__del__`` or weak references, or a list such."""
    if variable.is_constant() or _is_held(evaluator, variable):
        return False
    if isinstance(variable, SequenceVariable):
        return any(map(has_finalizer, variable.element_types()))
    if variable.source is None:
        return False
    rows = evaluator.builder.wrapped()
    value = next((value for value, known, _ in rows if known is variable), None)
    return has_finalizer(type(value)) or weakref.getweakrefcount(value) > 0
