"""Opcodes that make functions, return, and suspend generators."""

from __future__ import annotations

from ...code_objects.dialects import DIALECT
from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import Instruction, handles
from ..evaluator import FrameEvaluator
from ..models.exceptions.exception_objects import ExceptionVariable
from ..models.functions.python_functions import (
    ANNOTATIONS,
    CLOSURE,
    DEFAULTS,
    KEYWORD_DEFAULTS,
    NewFunctionVariable,
)
from ..variables.constant import ConstantVariable


@handles("MAKE_FUNCTION")
def _make_function(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    code = evaluator.pop().as_constant()
    function = NewFunctionVariable(code, evaluator.globals.dictionary)
    for flag in (CLOSURE, ANNOTATIONS, KEYWORD_DEFAULTS, DEFAULTS):
        if instruction.argument & flag:  # since 3.13 there are none
            function.give(evaluator, flag, evaluator.pop())
    evaluator.stack.append(function)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    value, function = evaluator.pop_many(2)
    assert isinstance(function, NewFunctionVariable)
    function.give(evaluator, instruction.argument, value)
    evaluator.stack.append(function)


@handles("RETURN_VALUE")
def _return_value(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.result = evaluator.pop()
    evaluator.finished = True


@handles("RETURN_CONST")
def _return_const(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.result = ConstantVariable(evaluator.code.co_consts[instruction.argument])
    evaluator.finished = True


@handles("RETURN_GENERATOR")
def _return_generator(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    """The generator object exists already; its frame goes on after a POP_TOP of what send() gives."""
    evaluator.stack.append(ConstantVariable(None))


@handles("YIELD_VALUE")
def _yield_value(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.result = evaluator.pop()
    evaluator.suspended = True


@handles("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    evaluator.stack.append(evaluator.pop().iterator(evaluator))


@handles("SEND")
def _send(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    """``yield from``: send the top to the iterator below it; on its end push its value and jump."""
    value = evaluator.pop()
    iterator = evaluator.stack[-1]
    assert iterator is not None
    try:
        if value.is_none():
            result = iterator.call_method(evaluator, "__next__", [], {})
        else:
            result = iterator.call_method(evaluator, "send", [value], {})
    except CapturedException as error:
        if not issubclass(error.exception.python_type(), StopIteration):
            raise
        result = error.exception.get_attribute(evaluator, "value")
        if not DIALECT.send_keeps_iterator:
            evaluator.stack.pop()
        evaluator.jump(instruction)
    evaluator.stack.append(result)


@handles("CLEANUP_THROW")
def _cleanup_throw(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    """An exception thrown into ``yield from``: StopIteration gives its value, others go on."""
    exception = evaluator.pop()
    assert isinstance(exception, ExceptionVariable)
    if not issubclass(exception.python_type(), StopIteration):
        raise CapturedException(exception)
    del evaluator.stack[-2:]
    evaluator.stack += [ConstantVariable(None), exception.get_attribute(evaluator, "value")]


@handles(
    "ASYNC_GEN_WRAP",
    "BEFORE_ASYNC_WITH",
    "END_ASYNC_FOR",
    "GET_AITER",
    "GET_ANEXT",
    "GET_AWAITABLE",
)
def _asynchronous(evaluator: FrameEvaluator, instruction: Instruction) -> None:
    raise Unsupported("coroutine", instruction.name, "coroutines are not captured")
