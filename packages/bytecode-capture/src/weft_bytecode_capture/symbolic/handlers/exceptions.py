"""Opcodes of raising and handling exceptions, and of ``with`` blocks."""

from __future__ import annotations

from typing import NoReturn

from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import Instruction, handles
from ..evaluator import Evaluator
from ..variables.base import Variable
from ..variables.classes import ClassVariable
from ..variables.constant import ConstantVariable
from ..variables.exceptions import ExceptionVariable, instantiate
from ..variables.sequences import TupleVariable
from ..variables.values import resolution_order


@handles("RAISE_VARARGS")
def _raise_varargs(evaluator: Evaluator, instruction: Instruction) -> None:
    if instruction.argument == 0:
        handled = evaluator.handled_exception()
        if handled is None:
            evaluator.state.require_no_caller_handles()
            evaluator.raise_error(RuntimeError, "No active exception to reraise")
        raise CapturedException(handled)
    cause = evaluator.pop() if instruction.argument == 2 else None
    exception = instantiate(evaluator, evaluator.pop())
    if cause is not None:
        if cause.is_constant() and cause.as_constant() is None:
            exception.set_cause(None)
        else:
            exception.set_cause(instantiate(evaluator, cause))
    evaluator.raise_exception(exception)


@handles("LOAD_ASSERTION_ERROR")
def _load_assertion_error(evaluator: Evaluator, instruction: Instruction) -> None:
    evaluator.stack.append(evaluator.wrap_known(AssertionError))


@handles("PUSH_EXC_INFO")
def _push_exception_info(evaluator: Evaluator, instruction: Instruction) -> None:
    exception = evaluator.pop()
    previous = evaluator.handled
    evaluator.stack.append(ConstantVariable(None) if previous is None else previous)
    evaluator.stack.append(exception)
    if not isinstance(exception, ExceptionVariable):
        raise Unsupported("exception of unknown kind", repr(exception))
    evaluator.handled = exception


@handles("POP_EXCEPT")
def _pop_except(evaluator: Evaluator, instruction: Instruction) -> None:
    previous = evaluator.pop()
    evaluator.handled = previous if isinstance(previous, ExceptionVariable) else None


@handles("CHECK_EXC_MATCH")
def _check_exception_match(evaluator: Evaluator, instruction: Instruction) -> None:
    wanted = evaluator.pop()
    raised = evaluator.stack[-1]
    assert raised is not None
    classes = wanted.iterate(evaluator) if isinstance(wanted, TupleVariable) else [wanted]
    for kind in classes:
        if not isinstance(kind, ClassVariable) or not issubclass(kind.value, BaseException):
            evaluator.raise_error(
                TypeError, "catching classes that do not inherit from BaseException is not allowed"
            )
    matches = any(
        kind.value in resolution_order(raised.python_type())
        for kind in classes
        if isinstance(kind, ClassVariable)
    )
    evaluator.stack.append(ConstantVariable(matches))


@handles("RERAISE")
def _reraise(evaluator: Evaluator, instruction: Instruction) -> NoReturn:
    exception = evaluator.pop()
    raise CapturedException(exception)


@handles("CHECK_EG_MATCH", "PREP_RERAISE_STAR")
def _exception_groups(evaluator: Evaluator, instruction: Instruction) -> None:
    raise Unsupported("except*", instruction.name, "exception groups are left to CPython")


@handles("BEFORE_WITH")
def _before_with(evaluator: Evaluator, instruction: Instruction) -> None:
    manager = evaluator.pop()
    enter = _special_method(evaluator, manager, "__enter__")
    leave = _special_method(evaluator, manager, "__exit__")
    evaluator.stack.append(leave)
    evaluator.stack.append(enter.call(evaluator, [], {}))


def _special_method(evaluator: Evaluator, manager: Variable, name: str) -> Variable:
    try:
        return manager.get_attribute(evaluator, name)
    except CapturedException as error:
        if error.exception.python_type() is not AttributeError:
            raise
        kind = manager.python_type().__name__
        missed = " (missed __exit__ method)" if name == "__exit__" else ""
        evaluator.raise_error(
            TypeError, f"{kind!r} object does not support the context manager protocol{missed}"
        )


@handles("WITH_EXCEPT_START")
def _with_except_start(evaluator: Evaluator, instruction: Instruction) -> None:
    """Stack: exit function, last instruction, previous exception, exception."""
    exception = evaluator.stack[-1]
    leave = evaluator.stack[-4]
    assert exception is not None
    assert leave is not None
    assert isinstance(exception, ExceptionVariable)
    kind = evaluator.wrap_known(exception.python_type())
    traceback = exception.get_attribute(evaluator, "__traceback__")
    evaluator.stack.append(leave.call(evaluator, [kind, exception, traceback], {}))
