"""Exception objects of the captured program."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

from weft_guards import Source

from ...unsupported import Unsupported
from .base import Variable
from .builtins import builtin
from .constant import ConstantVariable
from .sequences import TupleVariable
from .values import find_raw

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


class TracebackVariable(Variable):
    """The traceback of a captured exception: it is passed to ``__exit__``, and otherwise unknown."""

    def python_type(self) -> type:
        return types.TracebackType

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return False if other.is_constant() else None


class ExceptionVariable(Variable):
    """An exception made during evaluation, of a class without an ``__init__`` in Python."""

    def __init__(
        self, kind: type[BaseException], arguments: list[Variable], source: Source | None = None
    ) -> None:
        self.kind = kind
        self.arguments = arguments
        self.source = source
        self.attributes: dict[str, Variable] = {}
        self.cause: Variable | None = None
        self.has_cause = False
        self.context: Variable | None = None
        # The root frame's instruction that raised it: what a raised exception knows of its frames is
        # made by CPython, which raises it if it outlives the graph.
        self.created_at: int | None = None

    def python_type(self) -> type:
        return self.kind

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def rebuild_raised(self) -> None:
        """Let an equal exception do, without its frames, for this one and those it came from."""
        current: Variable | None = self
        while isinstance(current, ExceptionVariable) and current.created_at is not None:
            current.created_at = None
            if isinstance(current.cause, ExceptionVariable):
                current.cause.rebuild_raised()
            current = current.context

    def set_cause(self, cause: Variable | None) -> None:
        self.cause = cause
        self.has_cause = True

    def set_context(self, evaluator: Evaluator, context: Variable) -> None:
        """Set ``__context__``, broken where it would close a cycle, as CPython does."""
        current: Variable | None = context
        while isinstance(current, ExceptionVariable):
            if current.context is self:
                current.context = None
                break
            current = current.context
        self.context = context

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        none = ConstantVariable(None)
        if name in self.attributes:
            return self.attributes[name]
        if name == "args":
            return TupleVariable(self.arguments)
        if name == "value" and issubclass(self.kind, StopIteration):
            return self.arguments[0] if self.arguments else none
        if name == "__cause__":
            return self.cause or none
        if name == "__context__":
            if self.context is None and self.created_at is not None:
                evaluator.state.require_no_caller_handles()
            return self.context or none
        if name == "__traceback__":
            return TracebackVariable()
        if name == "__suppress_context__":
            return ConstantVariable(self.has_cause)
        if name == "__class__":
            return evaluator.wrap_known(self.kind)
        if find_raw(self.kind, name) is None:
            evaluator.raise_error(
                AttributeError, f"{self.kind.__name__!r} object has no attribute {name!r}"
            )
        raise Unsupported("attribute of an exception", f"{self.kind.__name__}.{name}")

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if name == "__traceback__" and isinstance(value, TracebackVariable):
            return  # that of an exception made during evaluation grows as CPython raises it
        if (
            self.source is not None
            or name.startswith("__")
            or find_raw(self.kind, name) is not None
        ):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.attributes[name] = value

    def snapshot(self) -> BaseException:
        """An equal exception, for its text."""
        special = next(base for base in self.kind.__mro__ if "__str__" in base.__dict__)
        if not isinstance(special.__dict__["__str__"], types.WrapperDescriptorType):
            raise Unsupported("text of an exception", f"{self.kind.__qualname__}.__str__")
        return self.kind(*(argument.snapshot() for argument in self.arguments))

    def reconstruct(self, emitter: Emitter) -> None:
        if self.created_at is not None:
            raise Unsupported("raised exception outlives the graph", repr(self))
        emitter.load_callable(_new_exception)
        emitter.load_callable(self.kind)
        for argument in self.arguments:
            emitter.load_variable(argument)
        emitter.call(len(self.arguments))
        for name, value in self.attributes.items():
            emitter.load_constant(name)
            emitter.load_variable(value)
        emitter.build("map", len(self.attributes))
        emitter.load_constant(self.has_cause)
        emitter.load_variable(self.cause or ConstantVariable(None))
        emitter.load_variable(self.context or ConstantVariable(None))
        emitter.call(5)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(map(repr, self.arguments))})"


def _new_exception(
    exception: BaseException,
    attributes: dict[str, object],
    has_cause: bool,
    cause: BaseException | None,
    context: BaseException | None,
) -> BaseException:
    for name, value in attributes.items():
        setattr(exception, name, value)
    if has_cause:
        exception.__cause__ = cause
    exception.__context__ = context
    return exception


def instantiate(evaluator: Evaluator, value: Variable) -> ExceptionVariable:
    """The exception that ``raise value`` raises."""
    from .classes import ClassVariable

    if isinstance(value, ClassVariable):
        value = value.call(evaluator, [], {})
    if not isinstance(value, ExceptionVariable):
        if value.is_constant():
            evaluator.raise_error(TypeError, "exceptions must derive from BaseException")
        raise Unsupported("raise of an unknown object", repr(value))
    return value


def stop_iteration_error(evaluator: Evaluator, raised: Variable) -> Variable:
    """What leaves a generator in which StopIteration was raised: a RuntimeError."""
    if not isinstance(raised, ExceptionVariable) or not issubclass(
        raised.python_type(), StopIteration
    ):
        return raised
    error = ExceptionVariable(RuntimeError, [ConstantVariable("generator raised StopIteration")])
    error.set_cause(raised)
    error.set_context(evaluator, raised)
    return error


@builtin(sys.exception)
def _handled(evaluator: Evaluator) -> Variable:
    handled = evaluator.handled_exception()
    if handled is None:
        evaluator.state.require_no_caller_handles()
    return handled or ConstantVariable(None)


@builtin(sys.exc_info)
def _exc_info(evaluator: Evaluator) -> Variable:
    handled = evaluator.handled_exception()
    if handled is None:
        evaluator.state.require_no_caller_handles()
        return TupleVariable([ConstantVariable(None)] * 3)
    return TupleVariable([evaluator.wrap_known(handled.kind), handled, TracebackVariable()])
