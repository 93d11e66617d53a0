"""Exception objects of the captured program."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from weft_guards import Source

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import (
    find_raw,
    is_python_class,
    is_shadowed,
    resolution_order,
    write_shadowed,
)
from ..containers.sequences import TupleVariable
from ..objects.user_objects import UserObjectVariable
from ..table import model


def builtin_exceptions() -> list[type[BaseException]]:
    """The exception classes of the ``builtins`` module."""
    found = [kind for kind in vars(builtins).values() if isinstance(kind, type)]
    return [kind for kind in dict.fromkeys(found) if issubclass(kind, BaseException)]


class TracebackVariable(Variable):
    """The traceback of a captured exception: it is passed to ``__exit__``, and otherwise unknown."""

    kind = types.TracebackType

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return False if other.is_constant() else None


class ExceptionVariable(UserObjectVariable):
    """An exception made during evaluation.

    ``arguments`` is what its ``args`` holds, ``fields`` what classes in C keep beside (``name`` of an
    AttributeError), ``keywords`` what its constructor in C was given by name; other attributes are those
    of any instance.
    """

    def __init__(
        self, kind: type[BaseException], arguments: Arguments, source: Source | None = None
    ) -> None:
        super().__init__(kind, None, source)
        self.arguments = arguments
        self.fields: dict[str, Variable] = {}
        self.keywords: dict[str, Variable] = {}
        self.cause: Variable | None = None
        self.has_cause = False
        self.context: Variable | None = None
        # Changes whenever the traceback does: with every raise, and with every call that is left.
        self.traceback = object()
        # The root frame's instruction that raised it: what a raised exception knows of its frames is
        # made by CPython, which raises it if it outlives the graph.
        self.created_at: int | None = None

    def rebuild_raised(self) -> None:
        """Let an equal exception do, without its frames, for this one and those it came from."""
        current: Variable | None = self
        while isinstance(current, ExceptionVariable) and current.created_at is not None:
            current.created_at = None
            if isinstance(current.cause, ExceptionVariable):
                current.cause.rebuild_raised()
            current = current.context

    def drop_traceback(self, evaluator: Evaluator) -> None:
        """Have no traceback: until it is raised again an equal exception does for this one."""
        if self.context is None and self.created_at is not None:
            evaluator.state.require_no_caller_handles()
        self.created_at = None

    def set_cause(self, cause: Variable | None) -> None:
        self.cause = cause
        self.has_cause = True

    def set_context(self, context: Variable) -> None:
        """Set ``__context__``, broken where it would close a cycle, as CPython does."""
        seen: set[int] = set()  # a cycle that the program made by assignment stays
        current: Variable | None = context
        while isinstance(current, ExceptionVariable) and id(current) not in seen:
            seen.add(id(current))
            if current.context is self:
                current.context = None
                break
            current = current.context
        self.context = context

    # Attributes.

    def generic_get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        found = evaluator.state.find_in_type(self.kind, name)
        if found is not None and isinstance(found[1], _C_FIELDS) and not is_python_class(found[0]):
            return self.field(evaluator, name)
        return super().generic_get_attribute(evaluator, name)

    def field(self, evaluator: Evaluator, name: str) -> Variable:
        """What the exception's class keeps in C."""
        none = ConstantVariable(None)
        if name in self.fields:
            return self.fields[name]
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
            return none if self.created_at is None else TracebackVariable()
        if name == "__suppress_context__":
            return ConstantVariable(self.has_cause)
        if name == "__dict__":
            return self.instance_dictionary()
        raise Unsupported("attribute of an exception", f"{self.kind.__name__}.{name}")

    def generic_set_attribute(
        self, evaluator: Evaluator, name: str, value: Variable | None
    ) -> None:
        found = evaluator.state.find_in_type(self.kind, name)
        if found is None or not isinstance(found[1], _C_FIELDS) or is_python_class(found[0]):
            super().generic_set_attribute(evaluator, name, value)
            return
        none = value is not None and value.is_none()
        if name == "__traceback__" and isinstance(value, TracebackVariable):
            return  # that of an exception made during evaluation grows as CPython raises it
        if name == "__traceback__" and none:
            self.drop_traceback(evaluator)
        elif name == "__cause__" and (none or isinstance(value, ExceptionVariable)):
            self.set_cause(None if none else value)
        elif name == "__context__" and (none or isinstance(value, ExceptionVariable)):
            self.context = None if none else value
        elif name == "args" and value is not None:
            self.arguments = value.iterate(evaluator)
        else:
            raise Unsupported("attribute write", f"{self!r}.{name}")

    # As an object of Python.

    @property
    def given(self) -> Arguments:
        """What an equal exception is made of, beside ``keywords``."""
        return self.arguments

    def snapshot(self) -> BaseException:
        """An equal exception, for its text."""
        if find_raw(self.kind, "__str__") not in _TEXTS:
            raise Unsupported("text of an exception", f"{self.kind.__qualname__}.__str__")
        arguments = [argument.snapshot() for argument in self.given]
        return bare_exception(self.kind, arguments, snapshots(self.keywords))

    def builtin_text(self, evaluator: Evaluator, name: str, *arguments: Any) -> str:
        plain = [argument.printable(evaluator) for argument in self.given]
        exception = bare_exception(self.kind, plain, snapshots(self.keywords))
        return str(getattr(builtin_base(self.kind), name)(exception, *arguments))

    def reconstruct(self, emitter: Emitter) -> None:
        if self.created_at is not None:
            raise Unsupported("raised exception outlives the graph", repr(self))
        emitter.load_callable(_rebuilt)
        emitter.load_object(self.kind)
        emitter.load_elements("list", self.given)
        emitter.load_map(self.keywords)
        given = {n: v for n, v in self.attributes.items() if v is not None}
        emitter.load_map(self.fields | given)
        emitter.load_constant(self.has_cause)
        emitter.load_variable(self.cause or ConstantVariable(None))
        emitter.load_variable(self.context or ConstantVariable(None))
        emitter.call(7)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(map(repr, self.arguments))})"


_C_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_TEXTS = [kind.__dict__["__str__"] for kind in builtin_exceptions() if "__str__" in vars(kind)]


def builtin_base(kind: type) -> type[BaseException]:
    """The most derived exception class of CPython's own that a class derives from."""
    return next(base for base in kind.__mro__ if not is_python_class(base))


def bare_exception(
    kind: type[BaseException], arguments: list[Any], keywords: dict[str, Any]
) -> BaseException:
    """A new exception with ``args``, made without running the class's own code."""
    base: Any = builtin_base(kind)
    made: BaseException = base.__new__(kind, *arguments, **keywords)
    base.__init__(made, *arguments, **keywords)
    return made


def snapshots(keywords: Keywords) -> dict[str, Any]:
    """The values of arguments by name, which are constants."""
    return {name: value.snapshot() for name, value in keywords.items()}


def _rebuilt(
    kind: type[BaseException],
    arguments: list[Any],
    keywords: dict[str, Any],
    attributes: dict[str, object],
    has_cause: bool,
    cause: BaseException | None,
    context: BaseException | None,
) -> BaseException:
    exception = bare_exception(kind, arguments, keywords)
    for name, value in attributes.items():
        write = write_shadowed if is_shadowed(kind, name) else object.__setattr__
        write(exception, name, value)
    if has_cause:
        exception.__cause__ = cause
    exception.__context__ = context
    return exception


def instantiate(
    evaluator: Evaluator,
    value: Variable,
    refusal: str = "exceptions must derive from BaseException",
    named: Callable[[type], str] = repr,
) -> ExceptionVariable:
    """The exception that ``raise value`` raises; ``refusal`` is what CPython says of other values.

    ``named``: how it names the class of what a call of ``value`` gives, if that is no exception.
    """
    from ..objects.classes import ClassVariable

    made, is_called = value, False
    if isinstance(value, ClassVariable) and BaseException in resolution_order(value.value):
        made, is_called = value.call(evaluator, [], {}), True
    if isinstance(made, ExceptionVariable):
        return made
    if BaseException in resolution_order(made.python_type()):
        raise Unsupported("raise of an unknown object", repr(made))
    if is_called:
        kind, given = value.printable(evaluator), named(made.python_type())
        refusal = f"calling {kind!r} should have returned an instance of BaseException, not {given}"
    return evaluator.raise_error(TypeError, refusal)


def stop_iteration_error(evaluator: Evaluator, raised: Variable) -> ExceptionVariable:
    """What leaves a generator in which StopIteration was raised: a RuntimeError."""
    assert isinstance(raised, ExceptionVariable)
    if not issubclass(raised.kind, StopIteration):
        return raised
    error = ExceptionVariable(RuntimeError, [ConstantVariable("generator raised StopIteration")])
    error.set_cause(raised)
    error.set_context(raised)
    return error


@model(sys.exception)
def _handled(evaluator: Evaluator) -> Variable:
    handled = evaluator.handled_exception()
    if handled is None:
        evaluator.state.require_no_caller_handles()
    return handled or ConstantVariable(None)


@model(sys.exc_info)
def _exc_info(evaluator: Evaluator) -> Variable:
    handled = evaluator.handled_exception()
    if handled is None:
        evaluator.state.require_no_caller_handles()
        return TupleVariable([ConstantVariable(None)] * 3)
    return TupleVariable([evaluator.wrap_known(handled.kind), handled, TracebackVariable()])
