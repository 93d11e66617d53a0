"""Opcodes that call, make functions, return, and suspend generators."""

from __future__ import annotations

from ...code_objects.dialects import DIALECT
from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.containers.mappings import keyword_arguments
from ..models.containers.sequences import TupleVariable
from ..models.exceptions.exception_objects import ExceptionVariable, stop_iteration_error
from ..models.functions.python_functions import (
    ANNOTATIONS,
    CLOSURE,
    DEFAULTS,
    KEYWORD_DEFAULTS,
    NewFunctionVariable,
)
from ..models.functions.type_parameters import KINDS, TypeParameterVariable
from ..models.iterators.joint_iterators import note_creation
from ..variables.base import Arguments, Keywords, Variable
from ..variables.constant import ConstantVariable
from ..variables.missing_methods import name_in_c
from ..variables.operations import unary_operation
from .containers import function_label, has_no_elements
from .exceptions import prepare_reraise


@handles("KW_NAMES")
def _keyword_names(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.keyword_names = evaluator.code.co_consts[instruction.argument]


@handles("CALL")
def _call(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    names = evaluator.keyword_names
    evaluator.keyword_names = ()
    _call_with_names(evaluator, instruction.argument, names)


@handles("CALL_KW")
def _call_with_keywords(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    names = evaluator.pop().as_constant()
    _call_with_names(evaluator, instruction.argument, names)


def _pop_callee(evaluator: FrameEvaluator) -> tuple[Variable, list[Variable]]:
    """The callee, and its receiver if it is a method with one.

    Stack: NULL and callee, since 3.13 callee and NULL; or method and receiver.
    """
    second, first = evaluator.stack.pop(), evaluator.stack.pop()
    if first is None or second is None:
        function = first or second
        if function is None:
            raise RuntimeError("no callable on the stack")
        return function, []
    return first, [second]


def _call_with_names(evaluator: FrameEvaluator, count: int, names: tuple[str, ...]) -> None:
    """Call with ``count`` arguments, of which the last ones have ``names``."""
    arguments = evaluator.pop_many(count)
    function, receiver = _pop_callee(evaluator)
    keywords = {}
    if names:
        keywords = dict(zip(names, arguments[-len(names) :], strict=True))
        del arguments[-len(names) :]
    _push_result(evaluator, function, receiver + arguments, keywords)


def _push_result(
    evaluator: FrameEvaluator, function: Variable, arguments: Arguments, keywords: Keywords
) -> None:
    result = function.call(evaluator, arguments, keywords)
    note_creation(evaluator, result)
    evaluator.stack.append(result)


@handles("CALL_FUNCTION_EX")
def _call_function_ex(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    has_mapping = DIALECT.keywords_or_null or instruction.argument & 1
    mapping = evaluator.stack.pop() if has_mapping else None
    sequence = evaluator.pop()
    function, receiver = _pop_callee(evaluator)
    if has_no_elements(evaluator, sequence):
        label, kind = function_label(evaluator, function), name_in_c(sequence.python_type())
        text = f"{label}() argument after * must be an iterable, not {kind}"
        evaluator.raise_error(TypeError, text)
    keywords = {} if mapping is None else keyword_arguments(evaluator, mapping)
    _push_result(evaluator, function, receiver + sequence.tuple_elements(evaluator), keywords)


@handles("CALL_INTRINSIC_1")
def _call_intrinsic_1(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """3.12: functions of one operand that the compiler knows by number."""
    operand = evaluator.pop()
    number = instruction.argument
    if number == 3:
        evaluator.stack.append(stop_iteration_error(evaluator, operand))
    elif number == 5:
        evaluator.stack.append(unary_operation(evaluator, "pos", operand))
    elif number == 6:
        evaluator.stack.append(TupleVariable(operand.iterate(evaluator)))
    elif number in KINDS:
        evaluator.stack.append(TypeParameterVariable(number, operand))
    else:
        raise Unsupported("opcode", f"CALL_INTRINSIC_1 {number}")


@handles("CALL_INTRINSIC_2")
def _call_intrinsic_2(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    if instruction.argument == _SET_TYPE_PARAMETERS:
        function, parameters = evaluator.pop_many(2)
        assert isinstance(function, NewFunctionVariable)
        function.attributes["__type_params__"] = parameters
        evaluator.stack.append(function)
        return
    if instruction.argument != _PREPARE_RERAISE:
        raise Unsupported("opcode", f"CALL_INTRINSIC_2 {instruction.argument}")
    prepare_reraise(evaluator, instruction)


_PREPARE_RERAISE = 1  # INTRINSIC_PREP_RERAISE_STAR
_SET_TYPE_PARAMETERS = 4  # INTRINSIC_SET_FUNCTION_TYPE_PARAMS


# Opcodes that make functions, return, and suspend generators.


@handles("MAKE_FUNCTION")
def _make_function(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    code = evaluator.pop().as_constant()
    function = NewFunctionVariable(code, evaluator.globals.dictionary)
    for flag in (CLOSURE, ANNOTATIONS, KEYWORD_DEFAULTS, DEFAULTS):
        if instruction.argument & flag:  # since 3.13 there are none
            function.give(evaluator, flag, evaluator.pop())
    evaluator.stack.append(function)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value, function = evaluator.pop_many(2)
    assert isinstance(function, NewFunctionVariable)
    function.give(evaluator, instruction.argument, value)
    evaluator.stack.append(function)


@handles("RETURN_VALUE")
def _return_value(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.result = evaluator.pop()
    evaluator.finished = True


@handles("RETURN_CONST")
def _return_const(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.result = ConstantVariable(evaluator.code.co_consts[instruction.argument])
    evaluator.finished = True


@handles("RETURN_GENERATOR")
def _return_generator(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """The generator object exists already; its frame goes on after a POP_TOP of what send() gives.

    With ``early_iterators`` the frame has run to here when the object is made.
    """
    evaluator.stack.append(ConstantVariable(None))
    if DIALECT.early_iterators:
        evaluator.result = ConstantVariable(None)
        evaluator.suspended = True


@handles("YIELD_VALUE")
def _yield_value(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.result = evaluator.pop()
    evaluator.suspended = True


@handles("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(evaluator.pop().iterator(evaluator))


@handles("SEND")
def _send(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
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
def _cleanup_throw(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
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
def _asynchronous(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    raise Unsupported("coroutine", instruction.name, "coroutines are not captured")
