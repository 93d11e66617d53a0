"""Construction of exceptions, and the methods that their classes in C have."""

from __future__ import annotations

import traceback
import types
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import find_raw
from ..containers.sequences import ListVariable
from ..objects.classes import ClassVariable
from ..objects.instances import EXCEPTIONS_WITH_STATE
from ..table import model, models, unmodelled
from .exception_groups import new_group
from .exception_objects import (
    ExceptionVariable,
    TracebackVariable,
    builtin_base,
    builtin_exceptions,
)
from .exceptions_with_state import ExceptionWithStateVariable, new_with_state


def _new(
    evaluator: Evaluator, kind: Variable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """``BaseException.__new__``: it takes and forgets keywords, which ``__init__`` is given too."""
    if not isinstance(kind, ClassVariable) or not issubclass(kind.value, BaseException):
        raise Unsupported("construction of an instance", repr(kind))
    if issubclass(kind.value, EXCEPTIONS_WITH_STATE):
        return new_with_state(evaluator, kind.value, list(arguments), keywords)
    if issubclass(kind.value, BaseExceptionGroup):
        return new_group(evaluator, kind.value, list(arguments))
    return ExceptionVariable(kind.value, list(arguments))


def _init(
    evaluator: Evaluator, receiver: Variable, /, *arguments: Variable, **keywords: Variable
) -> None:
    assert isinstance(receiver, ExceptionVariable)
    if isinstance(receiver, ExceptionWithStateVariable):
        receiver.require_initialised_by(list(arguments), keywords)
        return
    if keywords:
        name = receiver.kind.__name__
        evaluator.raise_error(TypeError, f"{name}() takes no keyword arguments")
    receiver.arguments = list(arguments)


for _kind in builtin_exceptions():
    if isinstance(vars(_kind).get("__new__"), types.BuiltinFunctionType):
        model(_kind.__new__)(_new)
    if "__init__" in vars(_kind):
        model(vars(_kind)["__init__"])(_init)


@model(vars(BaseException)["with_traceback"])
def _with_traceback(evaluator: Evaluator, receiver: Variable, given: Variable, /) -> Variable:
    none = given.is_none()
    if not (none or isinstance(given, TracebackVariable)):
        raise Unsupported("traceback of unknown origin", repr(given))
    if not isinstance(receiver, ExceptionVariable):
        raise Unsupported("traceback of unknown origin", repr(receiver))
    if none:
        receiver.drop_traceback(evaluator)
    return receiver


@model(traceback.clear_frames)
def _clear_frames(evaluator: Evaluator, tb: Variable) -> Variable:
    """Frames that were evaluated hold nothing once they are left."""
    if tb.is_none() or isinstance(tb, TracebackVariable):
        return ConstantVariable(None)
    return evaluator.wrap_known(_CLEAR_FRAMES).call(evaluator, [tb], {})


_CLEAR_FRAMES = unmodelled(traceback.clear_frames)


def _refusal_of_note() -> str:
    try:
        BaseException().add_note(1)  # type: ignore[arg-type]
    except TypeError as error:
        return str(error)
    raise RuntimeError("a number is taken for a note")


_NO_NOTE = _refusal_of_note()
"""What CPython, which says it in other words since 3.14, says of an integer."""


@model(vars(BaseException)["add_note"])
def _add_note(evaluator: Evaluator, receiver: Variable, note: Variable, /) -> None:
    assert isinstance(receiver, ExceptionVariable)
    if not issubclass(note.python_type(), str):
        kind = note.python_type().__name__
        before, _, after = _NO_NOTE.rpartition("int")
        evaluator.raise_error(TypeError, f"{before}{kind}{after}")
    notes = receiver.instance_attribute(evaluator, "__notes__")
    if notes is None:
        notes = ListVariable()
        receiver.write_attribute(evaluator, "__notes__", notes)
    if type(notes) is not ListVariable:
        evaluator.raise_error(TypeError, "Cannot add note: __notes__ is not a list")
    notes.append(evaluator, note)


@models(
    *(
        vars(kind)[name]
        for kind in (BaseException, BaseExceptionGroup, KeyError, *EXCEPTIONS_WITH_STATE)
        for name in ("__str__", "__repr__")
        if name in vars(kind)
    )
)
def _text(method: Any, evaluator: Evaluator, receiver: Variable, /) -> Variable:
    assert isinstance(receiver, ExceptionVariable)
    if find_raw(builtin_base(receiver.kind), method.__name__) is not method:
        raise Unsupported("text of an exception", f"{method.__qualname__} of {receiver!r}")
    return ConstantVariable(receiver.builtin_text(evaluator, method.__name__))
