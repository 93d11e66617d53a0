"""Exception groups, and what ``except*`` does with them (PEP 654, CPython's Objects/exceptions.c)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import is_callable, resolution_order
from ..containers.sequences import ListVariable, TupleVariable
from ..functions.python_functions import FunctionVariable
from ..objects.classes import ClassVariable
from ..table import model
from .exception_objects import ExceptionVariable

Matcher = Callable[[ExceptionVariable], bool]

_GROUPS_ONE = sys.version_info < (3, 11, 4)
"""Whether a single exception that clauses of ``except*`` raise leaves them in a group."""


class ExceptionGroupVariable(ExceptionVariable):
    """A group; ``exceptions`` are those in it, as they were when it was made."""

    def __init__(
        self, kind: type[BaseException], arguments: Arguments, exceptions: list[ExceptionVariable]
    ) -> None:
        super().__init__(kind, arguments)
        self.message = arguments[0]
        self.exceptions = exceptions

    def field(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "message":
            return self.message
        if name == "exceptions":
            return TupleVariable(self.exceptions)
        return super().field(evaluator, name)

    def snapshot(self) -> BaseException:
        raise Unsupported("value is not a constant", repr(self))

    def builtin_text(self, evaluator: Evaluator, name: str, *arguments: object) -> str:
        if name != "__str__":
            raise Unsupported("text of an exception", f"{self.kind.__qualname__}.{name}")
        count = len(self.exceptions)
        plural = "" if count == 1 else "s"
        return f"{self.message.as_constant()} ({count} sub-exception{plural})"

    def reconstruct(self, emitter: Emitter) -> None:
        given = self.arguments[1]
        unread = isinstance(given, ListVariable) and given.source is not None
        if len(self.arguments) != 2 or unread:
            raise Unsupported("value cannot be rebuilt after a graph", repr(self))
        super().reconstruct(emitter)


def new_group(
    evaluator: Evaluator, kind: type[BaseException], arguments: Arguments
) -> ExceptionGroupVariable:
    """``BaseExceptionGroup.__new__``."""
    if len(arguments) != 2:
        message = "function takes exactly 2 arguments"
        evaluator.raise_error(TypeError, f"BaseExceptionGroup.__new__() {message}")
    message_variable, sequence = arguments
    if not issubclass(message_variable.python_type(), str):
        given = message_variable.python_type().__name__
        evaluator.raise_error(
            TypeError, f"BaseExceptionGroup.__new__() argument 1 must be str, not {given}"
        )
    if not isinstance(sequence, (ListVariable, TupleVariable)):
        raise Unsupported("arguments of a builtin class", f"{kind.__name__}(..., {sequence!r})")
    exceptions = _members(evaluator, sequence.iterate(evaluator))
    nested = next((e for e in exceptions if not issubclass(e.kind, Exception)), None)
    if kind is BaseExceptionGroup and nested is None:
        kind = ExceptionGroup
    elif nested is not None and issubclass(kind, Exception):
        where = "an ExceptionGroup" if kind is ExceptionGroup else repr(kind)
        evaluator.raise_error(TypeError, f"Cannot nest BaseExceptions in {where}")
    return ExceptionGroupVariable(kind, arguments, exceptions)


def _members(evaluator: Evaluator, items: list[Variable]) -> list[ExceptionVariable]:
    where = "second argument (exceptions)"
    if not items:
        evaluator.raise_error(ValueError, f"{where} must be a non-empty sequence")
    found = []
    for number, item in enumerate(items):
        if not isinstance(item, ExceptionVariable):
            if not item.is_constant():
                raise Unsupported("exception of unknown kind", repr(item))
            evaluator.raise_error(ValueError, f"Item {number} of {where} is not an exception")
        found.append(item)
    return found


# Splitting.


@dataclass(frozen=True)
class Split:
    """What of an exception matches, and what does not; None for nothing."""

    match: ExceptionVariable | None
    rest: ExceptionVariable | None


def split(
    evaluator: Evaluator, exception: ExceptionVariable, matches: Matcher, with_rest: bool = True
) -> Split:
    """The parts of an exception: itself, or groups that its ``derive`` makes of what they hold."""
    if matches(exception):
        return Split(exception, None)
    if not isinstance(exception, ExceptionGroupVariable):
        return Split(None, exception if with_rest else None)
    parts = [split(evaluator, part, matches, with_rest) for part in exception.exceptions]
    return Split(
        _subset(evaluator, exception, [part.match for part in parts]),
        _subset(evaluator, exception, [part.rest for part in parts]),
    )


def _subset(
    evaluator: Evaluator,
    group: ExceptionGroupVariable,
    parts: list[ExceptionVariable | None],
) -> ExceptionVariable | None:
    """A group like ``group``, its traceback, cause, context and notes among that, of other parts."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    made = group.call_method(evaluator, "derive", [ListVariable(present)], {})
    if not isinstance(made, ExceptionGroupVariable):
        evaluator.raise_error(TypeError, "derive must return an instance of BaseExceptionGroup")
    made.traceback = group.traceback
    made.created_at = group.created_at
    made.context = group.context
    made.set_cause(group.cause)
    notes = group.instance_attribute(evaluator, "__notes__")
    if notes is not None:
        copied = ListVariable(notes.iterate(evaluator))
        made.write_attribute(evaluator, "__notes__", copied)
    return made


def _by_class(evaluator: Evaluator, wanted: Variable) -> Matcher | None:
    """The matcher of a class or a tuple of classes; None for anything else."""
    classes = wanted.iterate(evaluator) if isinstance(wanted, TupleVariable) else [wanted]
    kinds = [kind.value for kind in classes if isinstance(kind, ClassVariable)]
    if len(kinds) < len(classes) or not all(issubclass(kind, BaseException) for kind in kinds):
        return None
    return lambda exception: not set(kinds).isdisjoint(resolution_order(exception.kind))


def _refused_by_split(matcher: Any) -> str | None:
    """The message of the TypeError that ``split`` raises; None where it takes the matcher."""
    try:
        BaseExceptionGroup("", [KeyError()]).split(matcher)
    except TypeError as error:
        return str(error)
    return None


_NO_MATCHER = _refused_by_split(None)
_SPLIT_BY_CALLABLES = _refused_by_split([].append) is None  # 3.13; functions alone before


def _matcher(evaluator: Evaluator, wanted: Variable) -> Matcher:
    """What ``split`` and ``subgroup`` go by: classes, or a function."""
    found = _by_class(evaluator, wanted)
    if found is not None:
        return found
    is_taken = isinstance(wanted, FunctionVariable)
    if _SPLIT_BY_CALLABLES and not isinstance(wanted, ClassVariable):
        is_taken = bool(is_callable(wanted))
    if not is_taken:
        evaluator.raise_error(TypeError, _NO_MATCHER)
    return lambda exception: wanted.call(evaluator, [exception], {}).truth(evaluator)


def _or_none(variable: Variable | None) -> Variable:
    return ConstantVariable(None) if variable is None else variable


@model(vars(BaseExceptionGroup)["split"])
def _split(evaluator: Evaluator, receiver: Variable, wanted: Variable, /) -> Variable:
    assert isinstance(receiver, ExceptionGroupVariable)
    parts = split(evaluator, receiver, _matcher(evaluator, wanted))
    return TupleVariable([_or_none(parts.match), _or_none(parts.rest)])


@model(vars(BaseExceptionGroup)["subgroup"])
def _subgroup(evaluator: Evaluator, receiver: Variable, wanted: Variable, /) -> Variable:
    assert isinstance(receiver, ExceptionGroupVariable)
    return _or_none(split(evaluator, receiver, _matcher(evaluator, wanted), False).match)


@model(vars(BaseExceptionGroup)["derive"])
def _derive(evaluator: Evaluator, receiver: Variable, exceptions: Variable, /) -> Variable:
    assert isinstance(receiver, ExceptionGroupVariable)
    return new_group(evaluator, BaseExceptionGroup, [receiver.message, exceptions])


# except*.


def match_clause(
    evaluator: Evaluator, exception: ExceptionVariable, wanted: Variable
) -> tuple[Variable, Variable]:
    """What an ``except* wanted`` clause takes of an exception, and what it leaves (None: nothing)."""
    matches = _by_class(evaluator, wanted)
    assert matches is not None, "checked before"
    none = ConstantVariable(None)
    if matches(exception):
        if not isinstance(exception, ExceptionGroupVariable):
            exception = new_group(
                evaluator, ExceptionGroup, [ConstantVariable(""), TupleVariable([exception])]
            )
        return exception, none
    if not isinstance(exception, ExceptionGroupVariable):
        return none, exception
    pair = exception.call_method(evaluator, "split", [wanted], {}).iterate(evaluator)
    if len(pair) != 2:
        raise Unsupported("except*", f"{exception!r}.split() gave {len(pair)} parts")
    return pair[0], pair[1]


def raised_after_clauses(
    evaluator: Evaluator, original: ExceptionVariable, left: list[Variable]
) -> Variable:
    """What leaves a ``try`` whose ``except*`` clauses left ``left``: raised, raised again, unhandled."""
    exceptions = [part for part in left if isinstance(part, ExceptionVariable)]
    if not exceptions:
        return ConstantVariable(None)
    if not isinstance(original, ExceptionGroupVariable):
        return exceptions[0]  # a naked exception: one clause at most has run
    again = [part for part in exceptions if _same_metadata(part, original)]
    raised: list[ExceptionVariable] = [part for part in exceptions if part not in again]
    leaves = {id(leaf) for part in again for leaf in _leaves(part)}
    kept = split(evaluator, original, lambda part: id(part) in leaves, False).match
    is_grouped = _GROUPS_ONE and bool(raised)
    if kept is not None:
        raised.append(kept)
    if len(raised) == 1 and not is_grouped:
        return raised[0]
    return new_group(evaluator, BaseExceptionGroup, [ConstantVariable(""), ListVariable(raised)])


def _same_metadata(left: ExceptionVariable, right: ExceptionVariable) -> bool:
    """Whether an exception is part of another as it was caught: not raised since."""
    return (
        left.traceback is right.traceback
        and left.cause is right.cause
        and left.context is right.context
    )


def _leaves(exception: ExceptionVariable) -> list[ExceptionVariable]:
    if not isinstance(exception, ExceptionGroupVariable):
        return [exception]
    return [leaf for part in exception.exceptions for leaf in _leaves(part)]
