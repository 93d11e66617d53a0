"""Why no compiled version fits a call, asked without making it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft_guards import GuardFailure, GuardSet, Scope

from .._frame_hook import Entry, Wrapper


def guard_set_of(entry: Entry) -> GuardSet:
    """What the entry's guard check was compiled from: kept behind the objects of its code.

    Nothing where it has been retired, as any object's death may do at any time.
    """
    guard_set = (entry.objects or (GuardSet(()),))[-1]
    assert isinstance(guard_set, GuardSet)
    return guard_set


def failed_guards(
    compiled: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[GuardFailure, ...]:
    """The first guard that fails of each version that ``compiled`` has of its function's own frame.

    The version used last comes first.  Empty where one fits, where none is compiled yet, and for what is no
    compiled Python function.

    :raises TypeError: the function does not take these arguments.
    """
    if not isinstance(compiled, Wrapper) or compiled.context is None:
        return ()
    function: Any = compiled.callable
    if isinstance(function, types.MethodType):
        arguments, function = (function.__self__, *arguments), function.__func__
    if not isinstance(function, types.FunctionType):
        return ()
    bound = inspect.signature(function, follow_wrapped=False).bind(*arguments, **keywords)
    bound.apply_defaults()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    builtins: Mapping[str, Any] = function.__getattribute__("__builtins__")
    scope = Scope(bound.arguments, function.__globals__, builtins, cells)
    entries = compiled.context.entries(function.__code__)
    found = [guard_set_of(entry).explain(scope) for entry in entries]
    failures = tuple(failure for failure in found if failure is not None)
    return failures if len(failures) == len(found) else ()
