"""Opcodes of raising and handling exceptions, and of ``with`` blocks."""

from __future__ import annotations

from typing import NoReturn

from ...code_objects.dialects import DIALECT
from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.containers.sequences import TupleVariable
from ..models.exceptions.exception_groups import match_clause, raised_after_clauses
from ..models.exceptions.exception_objects import ExceptionVariable, instantiate
from ..models.objects.classes import ClassVariable
from ..models.objects.instance_protocols import InstanceProtocols
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.python_protocols import full_name, resolution_order


@handles("RAISE_VARARGS")
def _raise_varargs(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    if instruction.argument == 0:
        handled = evaluator.handled_exception()
        if handled is None:
            evaluator.state.require_no_caller_handles()
            evaluator.raise_error(RuntimeError, "No active exception to reraise")
        raise CapturedException(handled)
    cause = evaluator.pop() if instruction.argument == 2 else None
    exception = instantiate(evaluator, evaluator.pop())
    if cause is not None:
        if cause.is_none():
            exception.set_cause(None)
        else:
            refusal = "exception causes must derive from BaseException"
            exception.set_cause(instantiate(evaluator, cause, refusal))
    evaluator.raise_exception(exception)


@handles("LOAD_ASSERTION_ERROR")
def _load_assertion_error(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(evaluator.wrap_known(AssertionError))


@handles("PUSH_EXC_INFO")
def _push_exception_info(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    exception = evaluator.pop()
    previous = evaluator.handled
    evaluator.stack.append(ConstantVariable(None) if previous is None else previous)
    evaluator.stack.append(exception)
    if not isinstance(exception, ExceptionVariable):
        raise Unsupported("exception of unknown kind", repr(exception))
    evaluator.handled = exception


@handles("POP_EXCEPT")
def _pop_except(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    previous = evaluator.pop()
    evaluator.handled = previous if isinstance(previous, ExceptionVariable) else None


@handles("CHECK_EXC_MATCH")
def _check_exception_match(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    wanted = evaluator.pop()
    raised = evaluator.stack[-1]
    assert raised is not None
    order = resolution_order(raised.python_type())
    matches = any(kind in order for kind in _caught_classes(evaluator, wanted))
    evaluator.stack.append(ConstantVariable(matches))


def _caught_classes(evaluator: FrameEvaluator, wanted: Variable) -> list[type]:
    """The classes that a clause names; TypeError if they are no exceptions'."""
    classes = wanted.iterate(evaluator) if isinstance(wanted, TupleVariable) else [wanted]
    found = [kind.value for kind in classes if isinstance(kind, ClassVariable)]
    if len(found) < len(classes) or not all(issubclass(kind, BaseException) for kind in found):
        evaluator.raise_error(
            TypeError, "catching classes that do not inherit from BaseException is not allowed"
        )
    return found


@handles("RERAISE")
def _reraise(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> NoReturn:
    exception = evaluator.pop()
    assert isinstance(exception, ExceptionVariable)
    raise CapturedException(exception)


@handles("CHECK_EG_MATCH")
def _check_group_match(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Replace the exception by what the clause leaves, and push what it takes; None: nothing."""
    wanted = evaluator.pop()
    for kind in _caught_classes(evaluator, wanted):
        if issubclass(kind, BaseExceptionGroup):
            message = "catching ExceptionGroup with except* is not allowed. Use except instead."
            evaluator.raise_error(TypeError, message)
    exception = evaluator.stack[-1]
    none = ConstantVariable(None)
    if not isinstance(exception, ExceptionVariable):
        evaluator.stack.append(none)  # nothing is left of it
        return
    taken, left = match_clause(evaluator, exception, wanted)
    if isinstance(taken, ExceptionVariable):
        evaluator.stack[-1] = left
        evaluator.handled = taken
    evaluator.stack.append(taken)


@handles("PREP_RERAISE_STAR")
def prepare_reraise(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Behind the clauses; stack: the exception caught, and a list of what they raised and left."""
    original, left = evaluator.pop_many(2)
    assert isinstance(original, ExceptionVariable)
    evaluator.stack.append(raised_after_clauses(evaluator, original, left.iterate(evaluator)))


@handles("BEFORE_WITH")
def _before_with(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    manager = evaluator.pop()
    names = ("__exit__", "__enter__") if DIALECT.null_above_exit else ("__enter__", "__exit__")
    found = {name: _special_method(evaluator, manager, name) for name in names}
    leave = found["__exit__"]
    evaluator.stack += (leave, None) if DIALECT.null_above_exit else (leave,)
    evaluator.stack.append(found["__enter__"].call(evaluator, [], {}))


def _special_method(evaluator: FrameEvaluator, manager: Variable, name: str) -> Variable:
    """A method of the manager's class, whatever the instance itself has by that name."""
    if isinstance(manager, InstanceProtocols):
        method = manager.special(evaluator, name)
        return method if method is not None else _raise_no_manager(evaluator, manager, name)
    try:
        return manager.get_attribute(evaluator, name)
    except CapturedException as error:
        if error.exception.python_type() is not AttributeError:
            raise
        _raise_no_manager(evaluator, manager, name)


def _raise_no_manager(evaluator: FrameEvaluator, manager: Variable, name: str) -> NoReturn:
    kind = manager.python_type()
    label, missed = kind.__name__, " (missed __exit__ method)" if name == "__exit__" else ""
    if DIALECT.null_above_exit:
        label, missed = full_name(kind), f" (missed {name} method)"
        if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
            missed += _IS_ASYNCHRONOUS
    evaluator.raise_error(
        TypeError, f"'{label}' object does not support the context manager protocol{missed}"
    )


_IS_ASYNCHRONOUS = (
    " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
)


@handles("WITH_EXCEPT_START")
def _with_except_start(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """Stack: exit function (and NULL), last instruction, previous exception, exception."""
    exception = evaluator.stack[-1]
    leave = evaluator.stack[-5 if DIALECT.null_above_exit else -4]
    assert exception is not None
    assert leave is not None
    assert isinstance(exception, ExceptionVariable)
    kind = evaluator.wrap_known(exception.python_type())
    traceback = exception.get_attribute(evaluator, "__traceback__")
    evaluator.stack.append(leave.call(evaluator, [kind, exception, traceback], {}))
