"""Generators: made freely, and driven by ``next``, ``send``, ``throw`` and ``close`` as CPython does."""

from __future__ import annotations

import types
from typing import NoReturn

from ....code_objects.dialects import DIALECT
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...protocol import Evaluator, Frame
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import name_in_errors
from ..builtins.methods import BuiltinMethodVariable
from ..exceptions.exception_objects import (
    ExceptionVariable,
    TracebackVariable,
    instantiate,
    stop_iteration_error,
)
from .builtin_iterators import IteratorVariable

_RESUMED_AFTER = 3  # the bits of RESUME that say after what: 2 ``yield from``, 3 ``await``
_METHODS = ("__next__", "__iter__", "send", "throw", "close")


class GeneratorVariable(IteratorVariable):
    """A generator of an inlined function; it runs when an element is asked for."""

    kind = types.GeneratorType

    def __init__(self, frame: Frame, created_at: int) -> None:
        self.frame = frame
        self.created_at: int = created_at
        self.started = False
        self.running = False
        self.returned: Variable = ConstantVariable(None)

    # Driving the frame.

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        return self._send(evaluator, ConstantVariable(None))

    def _send(self, evaluator: Evaluator, value: Variable) -> Variable | None:
        """The next element after the suspended ``yield`` has given ``value``; None at the end."""
        frame = self.frame
        if self.running:
            evaluator.raise_error(ValueError, "generator already executing")
        if frame.finished:
            self.returned = ConstantVariable(None)
            return None
        if self.started:
            frame.stack.append(value)
        elif not value.is_none():
            evaluator.raise_error(
                TypeError, "can't send non-None value to a just-started generator"
            )
        return self._run(evaluator)

    def _run(self, evaluator: Evaluator) -> Variable | None:
        """Run to the next ``yield`` or the end; StopIteration may not leave a generator (PEP 479)."""
        frame = self.frame
        frame.parent = evaluator.state.current
        frame.suspended = False
        frame.result = None
        self.started = self.running = True
        try:
            element = frame.run()
        except CapturedException as error:
            raise CapturedException(stop_iteration_error(evaluator, error.exception)) from error
        finally:
            self.running = False
        if frame.finished:
            self.returned = element
            return None
        return element

    def _throw(self, evaluator: Evaluator, exception: ExceptionVariable) -> Variable | None:
        """Raise at the suspended ``yield``, or in the iterator that ``yield from`` waits for."""
        frame = self.frame
        if self.running:
            evaluator.raise_error(ValueError, "generator already executing")
        if frame.finished or not self.started:
            frame.finished = True
            raise CapturedException(exception)
        delegate = self._delegate()
        if delegate is not None:
            self.running = True
            try:
                return _throw_into(evaluator, delegate, exception)
            except _NoThrow:
                pass
            except CapturedException as error:
                raised = error.exception
                if not isinstance(raised, ExceptionVariable):
                    raise Unsupported("exception of unknown kind", repr(raised)) from error
                stopped = issubclass(raised.python_type(), StopIteration)
                if stopped and not DIALECT.send_keeps_iterator:
                    frame.stack[-1] = raised.get_attribute(evaluator, "value")
                    frame.next_index = self._after_delegation()
                    return self._run(evaluator)
                exception = raised
            finally:
                self.running = False
        if frame.handled is not None and frame.handled is not exception:
            exception.set_context(frame.handled)
        # What the yield would have given: handlers count it.
        frame.stack.append(ConstantVariable(None))
        try:
            frame.unwind(CapturedException(exception), frame.decoded.instructions[frame.index])
        except CapturedException as error:
            raise CapturedException(stop_iteration_error(evaluator, error.exception)) from error
        return self._run(evaluator)

    def _delegate(self) -> Variable | None:
        """The iterator that ``yield from`` waits for: RESUME says so by its operand."""
        frame = self.frame
        following = frame.decoded.instructions[frame.index + 1]
        if following.name == "RESUME" and following.argument & _RESUMED_AFTER >= 2:
            return frame.stack[-1]
        return None

    def _after_delegation(self) -> int:
        """Where ``yield from`` goes on at its iterator's end: where the SEND before the yield jumps."""
        instructions = self.frame.decoded.instructions
        index = self.frame.index
        while instructions[index].name != "SEND":
            index -= 1
        return instructions[index].target

    def is_suspended(self) -> bool:
        """Whether it waits at a ``yield``, where dropping it raises GeneratorExit."""
        return self.started and not self.frame.finished

    # Python's protocol.

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _METHODS:
            return BuiltinMethodVariable(self, name)
        if name in ("__name__", "__qualname__"):
            code = self.frame.code
            return ConstantVariable(code.co_name if name == "__name__" else code.co_qualname)
        if name == "gi_running":
            return ConstantVariable(self.running)
        if name == "gi_suspended":
            return ConstantVariable(self.started and not (self.running or self.frame.finished))
        if name in ("gi_frame", "gi_code", "gi_yieldfrom"):
            raise Unsupported("attribute of a generator", name)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if keywords or name not in _METHODS:
            raise Unsupported("method of a generator", name)
        if name == "__next__" and not arguments:
            return self._element(evaluator, self.next_or_none(evaluator))
        if name == "send" and len(arguments) == 1:
            return self._element(evaluator, self._send(evaluator, arguments[0]))
        if name == "throw" and 1 <= len(arguments) <= 3:
            exception = _thrown(evaluator, arguments)
            return self._element(evaluator, self._throw(evaluator, exception))
        if name == "close" and not arguments:
            return self._close(evaluator)
        if name == "__iter__" and not arguments:
            return self
        raise Unsupported("arguments of a generator's method", name)

    def _element(self, evaluator: Evaluator, element: Variable | None) -> Variable:
        return self.stop(evaluator) if element is None else element

    def stop(self, evaluator: Evaluator) -> NoReturn:
        """StopIteration with what the generator returned."""
        evaluator.raise_exception(
            ExceptionVariable(StopIteration, [] if self.returned.is_none() else [self.returned])
        )

    def _close(self, evaluator: Evaluator) -> Variable:
        none = ConstantVariable(None)
        if self.frame.finished or not self.started:
            self.frame.finished = True
            return none
        try:
            element = self._throw(evaluator, ExceptionVariable(GeneratorExit, []))
        except CapturedException as error:
            if issubclass(error.exception.python_type(), (StopIteration, GeneratorExit)):
                return none
            raise
        if element is not None:
            evaluator.raise_error(RuntimeError, "generator ignored GeneratorExit")
        return self.returned if DIALECT.close_gives_result else none

    def reconstruct(self, emitter: Emitter) -> None:
        raise Unsupported("generator that outlives the graph", repr(self))

    def __repr__(self) -> str:
        return f"Generator({self.frame.code.co_qualname})"


class _NoThrow(Exception):
    """The iterator of a ``yield from`` has no ``throw``: the exception is raised at the ``yield from``."""


def _throw_into(
    evaluator: Evaluator, iterator: Variable, exception: ExceptionVariable
) -> Variable | None:
    if isinstance(iterator, IteratorVariable) and not isinstance(iterator, GeneratorVariable):
        raise _NoThrow
    if issubclass(exception.python_type(), GeneratorExit):
        if iterator.find_attribute(evaluator, "close"):
            iterator.call_method(evaluator, "close", [], {})
        raise _NoThrow
    if not iterator.find_attribute(evaluator, "throw"):
        raise _NoThrow
    return iterator.call_method(evaluator, "throw", [exception], {})


def _thrown(evaluator: Evaluator, arguments: Arguments) -> ExceptionVariable:
    """The exception of ``throw(value)`` or ``throw(type, value, traceback)``."""
    if len(arguments) == 3:
        traceback = arguments[2]
        if not traceback.is_none() and not isinstance(traceback, TracebackVariable):
            raise Unsupported("traceback of unknown origin", repr(traceback))
    value = arguments[1] if len(arguments) > 1 else ConstantVariable(None)
    if isinstance(value, ExceptionVariable):
        return value
    if value.is_none():
        kind = arguments[0].python_type().__name__
        refusal = "exceptions must be classes or instances deriving from BaseException, not "
        is_class = issubclass(arguments[0].python_type(), type)
        try:
            return instantiate(evaluator, arguments[0], refusal + kind, name_in_errors)
        except CapturedException as error:
            made = error.exception
            if is_class and isinstance(made, ExceptionVariable):
                return made  # the generator is thrown what making the exception has raised
            raise
    raise Unsupported("throw() of a value that is no exception", repr(value))
