"""``warnings.warn``: given after the graph, for the line that gave it."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...frame_ends import handler_goes_on
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ..objects.classes import ClassVariable
from ..table import model


@model(warnings.warn)
def _warn(
    evaluator: Evaluator,
    message: Variable,
    category: Variable | None = None,
    stacklevel: Variable | None = None,
    source: Variable | None = None,
) -> None:
    """A warning is no part of the graph; one that a filter makes an error is raised after it."""
    kind = UserWarning if category is None or category.is_none() else _class(category)
    level = 1 if stacklevel is None else stacklevel.as_constant()
    frame = _frame_at(evaluator.frame, level)
    plain = message.python_type() is str and source is None
    if frame is None or kind is None or not plain or _is_watched(evaluator):
        raise Unsupported("call of a builtin function", f"warn({message!r})")
    line = frame.location().line
    place = (frame.globals.dictionary, kind, frame.code.co_filename, line)
    evaluator.side_effects.record(functools.partial(_emit, message, place))


def _class(category: Variable) -> type[Warning] | None:
    if isinstance(category, ClassVariable) and issubclass(category.value, Warning):
        found: type[Warning] = category.value
        return found
    return None


def _frame_at(frame: Frame, level: Any) -> Frame | None:
    """The frame that a warning is for; None where it called the captured one."""
    above = max(level - 1, 0) if type(level) is int else 0
    return next(itertools.islice(frame.frames(), above, None), None)


def _is_watched(evaluator: Evaluator) -> bool:
    """Whether the program may catch what a filter raises, or has changed filters before."""
    if any(handler_goes_on(frame) or frame.suspended for frame in evaluator.frame.frames()):
        return True
    changed = evaluator.state.written_globals()
    return evaluator.graph.is_in_region or any(m.dictionary is vars(warnings) for m in changed)


def _emit(message: Variable, place: tuple[Any, ...], emitter: Emitter) -> None:
    emitter.load_callable(_GIVEN)
    emitter.load_variable(message)
    for part in place:
        emitter.load_object(part)
    emitter.call(1 + len(place))
    emitter.pop()


def _given(
    message: str, namespace: dict[str, Any], kind: type[Warning], file: str, line: int
) -> None:
    module = namespace.get("__name__", "<string>")
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, kind, file, line, module, registry)


_GIVEN = _frame_hook.disabled(_given)
