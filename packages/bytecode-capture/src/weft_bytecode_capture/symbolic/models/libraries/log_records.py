"""``logging``: records of enabled loggers are made and handled after the graph, for the line that logged."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import sys
from typing import Any

import torch

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.unread_tuples import is_tuple
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import model, polyfill


@polyfill(logging.Logger.isEnabledFor)
def is_enabled_for(self: logging.Logger, level: int) -> bool:
    """The same answer without the logger's cache, which other threads fill and clear under a lock."""
    if self.disabled or self.manager.disable >= level:
        return False
    return level >= self.getEffectiveLevel()


@model(logging.Manager.getLogger)
def _child(evaluator: Evaluator, self: Variable, name: Variable) -> Variable:
    """What ``Logger.getChild`` asks for."""
    manager: Any = getattr(self, "value", None)
    if manager is not logging.Logger.manager:
        raise Unsupported("call of a builtin function", f"getLogger({name!r}) of {self!r}")
    return _get_logger(evaluator, name)


@model(logging.getLogger)
def _get_logger(evaluator: Evaluator, name: Variable | None = None) -> Variable:
    """A logger stays its manager's; one that is not there yet is made by CPython."""
    text = None if name is None else name.as_constant()
    known = logging.Logger.manager.loggerDict.get(text) if type(text) is str else None
    if not text or text == logging.root.name:
        known = logging.root
    if not isinstance(known, logging.Logger):
        raise Unsupported("call of a builtin function", f"getLogger({text!r}), which makes it")
    return evaluator.wrap_known(known)


@model(logging.Logger._log)
def _log(
    evaluator: Evaluator,
    self: Variable,
    level: Variable,
    msg: Variable,
    args: Variable,
    exc_info: Variable | None = None,
    extra: Variable | None = None,
    stack_info: Variable | None = None,
    stacklevel: Variable | None = None,
) -> None:
    """A record is no part of the graph; what it is made of must be the same once the graph has run."""
    asked = [option for option in (exc_info, stack_info) if option is not None]
    frame = _frame_at(evaluator.frame, 1 if stacklevel is None else stacklevel.as_constant())
    is_plain = not any(option.truth(evaluator) for option in asked)
    is_redirected = any(m.dictionary is vars(sys) for m in evaluator.state.written_globals())
    if frame is None or not is_plain or is_redirected or not _is_plain_logger(evaluator, self):
        raise Unsupported("call of a builtin function", f"log of {msg!r}")
    if evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", f"log of {msg!r}")
    place = (frame.code.co_filename, frame.location().line, frame.code.co_name)
    parts = [_unchanging(evaluator, part) for part in (self, level, msg, args)]
    more = None if extra is None or extra.is_none() else _unchanging(evaluator, extra)
    evaluator.side_effects.record(functools.partial(_emit, parts, place, more))


def _frame_at(frame: Frame, level: Any) -> Frame | None:
    """The frame that a record is of; None where it called the captured one."""
    outside = (f for f in frame.frames() if f.code.co_filename != _SOURCE)
    return next(itertools.islice(outside, max(level, 1) - 1, None), None)


_SOURCE = logging.Logger._log.__code__.co_filename


def _is_plain_logger(evaluator: Evaluator, logger: Variable) -> bool:
    """Whether its class finds the caller as ``logging`` does."""
    found = evaluator.state.find_in_type(logger.python_type(), "findCaller")
    return found is not None and found[1] is logging.Logger.findCaller


def _unchanging(evaluator: Evaluator, part: Variable) -> Variable:
    """What stands for a part of a record once the graph has run: itself, or what it holds now.

    Texts are made of it when a handler writes the record.
    """
    if is_tuple(part) or part.python_type() is torch.Size:
        old = part.iterate(evaluator)
        new = [_unchanging(evaluator, item) for item in old]
        if all(map(operator.is_, new, old)):
            return part
        return TupleVariable(new)
    if part.is_constant() or isinstance(part, SymbolicNumberVariable):
        return part
    if part.python_type() in (int, float, bool, str) or _is_logger(part):
        return part
    if type(part) in (ListVariable, DictVariable):
        _read(evaluator, part)
        return evaluator.wrap_result(part.snapshot())
    raise Unsupported("call of a builtin function", f"log of {part!r}")


def _read(evaluator: Evaluator, part: Variable) -> None:
    """Know all that lists and dicts hold, those from outside too."""
    inner: list[Variable] = []
    if isinstance(part, ListVariable):
        inner = part.items(evaluator)
    elif isinstance(part, DictVariable):
        inner = list(part.all_entries(evaluator).values())
    for value in inner:
        _read(evaluator, value)


def _is_logger(part: Variable) -> bool:
    return issubclass(part.python_type(), logging.Logger)


def _emit(
    parts: list[Variable], place: tuple[Any, ...], extra: Variable | None, emitter: Emitter
) -> None:
    emitter.load_callable(_WRITTEN)
    for part in parts:
        emitter.load_variable(part)
    for known in place:
        emitter.load_object(known)
    if extra is None:
        emitter.load_constant(None)
    else:
        emitter.load_variable(extra)
    emitter.call(len(parts) + len(place) + 1)
    emitter.pop()


def _written(
    logger: logging.Logger,
    level: int,
    message: object,
    arguments: tuple[Any, ...],
    file: str,
    line: int,
    function: str,
    extra: dict[str, Any] | None,
) -> None:
    record = logger.makeRecord(
        logger.name, level, file, line, message, arguments, None, function, extra, None
    )
    logger.handle(record)


_WRITTEN = _frame_hook.disabled(_written)
