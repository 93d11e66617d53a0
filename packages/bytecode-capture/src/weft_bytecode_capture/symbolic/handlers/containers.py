"""Opcodes that build, extend and unpack containers."""

from __future__ import annotations

import sys

from ...code_objects.dialects import DIALECT
from ...unsupported import Unsupported
from ..captured_exception import CapturedException
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.containers.mappings import DictVariable, keyword_arguments
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.containers.sets import SetVariable
from ..models.functions.bound_methods import BoundMethodVariable
from ..models.functions.python_functions import FunctionVariable
from ..variables.base import Variable
from ..variables.class_guards import guard_absent
from ..variables.constant import ConstantVariable
from ..variables.missing_methods import name_in_c, require_method
from ..variables.python_protocols import has_raw

_SEQUENCES = {"BUILD_TUPLE": TupleVariable, "BUILD_LIST": ListVariable}


@handles(*_SEQUENCES)
def _build_sequence(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    made = _SEQUENCES[instruction.name](evaluator.pop_many(instruction.argument))
    evaluator.stack.append(made)


@handles("BUILD_SET")
def _build_set(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    elements = evaluator.pop_many(instruction.argument)
    evaluator.stack.append(SetVariable.of(evaluator, elements))


@handles("BUILD_MAP")
def _build_map(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    flat = evaluator.pop_many(2 * instruction.argument)
    _push_dict(evaluator, flat[::2], flat[1::2])


@handles("BUILD_CONST_KEY_MAP")
def _build_const_key_map(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    keys = evaluator.pop().iterate(evaluator)
    _push_dict(evaluator, keys, evaluator.pop_many(instruction.argument))


def _push_dict(evaluator: FrameEvaluator, keys: list[Variable], values: list[Variable]) -> None:
    result = DictVariable()
    for key, value in zip(keys, values, strict=True):
        result.store(evaluator, key, value)
    evaluator.stack.append(result)


@handles("LIST_TO_TUPLE")
def _list_to_tuple(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(TupleVariable(evaluator.pop().iterate(evaluator)))


def _target(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> Variable:
    target = evaluator.stack[-instruction.argument]
    assert target is not None
    return target


@handles("LIST_APPEND")
def _list_append(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value = evaluator.pop()
    target = _target(evaluator, instruction)
    assert isinstance(target, ListVariable)
    target.append(evaluator, value)


_METHODS = {
    "SET_ADD": "add", "SET_UPDATE": "update",
}  # fmt: skip


@handles(*_METHODS)
def _add_by_method(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value = evaluator.pop()
    evaluator.call_method(_target(evaluator, instruction), _METHODS[instruction.name], value)


def has_no_elements(evaluator: FrameEvaluator, value: Variable) -> bool:
    """Whether an object can't be iterated."""
    try:
        kind = value.python_type()
    except Unsupported:  # nothing is known of it
        return False
    names = ("__iter__", "__getitem__")
    if any(has_raw(kind, name) for name in names):
        return False
    for name in names:
        guard_absent(evaluator, kind, name)
    return True


@handles("LIST_EXTEND")
def _list_extend(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """``[*a]``: of what has no elements CPython says so in other words than ``list.extend``."""
    value = evaluator.pop()
    if has_no_elements(evaluator, value):
        kind = name_in_c(value.python_type())
        evaluator.raise_error(TypeError, f"Value after * must be an iterable, not {kind}")
    evaluator.call_method(_target(evaluator, instruction), "extend", value)


@handles("DICT_UPDATE")
def _dict_update(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """``{**a}``: likewise of what has no keys."""
    value = evaluator.pop()
    if value.find_attribute(evaluator, "keys") is None:
        require_method(evaluator, value, "keys")
    evaluator.call_method(_target(evaluator, instruction), "update", value)


@handles("MAP_ADD")
def _map_add(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    key, value = evaluator.pop_many(2)
    _target(evaluator, instruction).call_method(evaluator, "__setitem__", [key, value], {})


_CALLEE_BELOW = 3 if DIALECT.null_above_callee else 2  # the dict that DICT_MERGE fills


def _label(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> str:
    """The name of the function whose keyword arguments are collected, in errors."""
    function = evaluator.stack[-instruction.argument - _CALLEE_BELOW]
    assert function is not None
    return function_label(evaluator, function)


def function_label(evaluator: FrameEvaluator, function: Variable) -> str:
    """The name of a function in errors about the arguments that it is given."""
    if isinstance(function, BoundMethodVariable):
        function = function.function
    if isinstance(function, FunctionVariable):
        module = function.get_attribute(evaluator, "__module__").as_constant()
        return f"{module}.{function.qualified_name()}"
    value = getattr(function, "value", None)
    name, module = (getattr(value, part, None) for part in ("__qualname__", "__module__"))
    if type(name) is not str:
        raise Unsupported("call of a builtin function", f"{function!r} of no arguments")
    return name if module in (None, "builtins") else f"{module}.{name}"


@handles("DICT_MERGE")
def _dict_merge(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """``f(**a, **b)``: a repeated key is an error."""
    mapping = evaluator.pop()
    target = _target(evaluator, instruction)
    assert isinstance(target, DictVariable)
    if mapping.find_attribute(evaluator, "keys") is None:
        kind = name_in_c(mapping.python_type())
        label = _label(evaluator, instruction)
        text = f"{label}() argument after ** must be a mapping, not {kind}"
        evaluator.raise_error(TypeError, text)
    for name, value in keyword_arguments(evaluator, mapping).items():
        key = ConstantVariable(name)
        if target.contains(evaluator, key):
            label = _label(evaluator, instruction)
            evaluator.raise_error(
                TypeError, f"{label}() got multiple values for keyword argument {name!r}"
            )
        target.store(evaluator, key, value)


_TELLS_LENGTH = sys.version_info >= (3, 14)
"""Whether the error about too many values says how many there are."""


@handles("UNPACK_SEQUENCE")
def _unpack_sequence(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    count = instruction.argument
    iterable = evaluator.pop()
    elements = _unpacked(evaluator, iterable, count, exact=True)
    if len(elements) < count:
        evaluator.raise_error(
            ValueError, f"not enough values to unpack (expected {count}, got {len(elements)})"
        )
    if len(elements) > count:
        kind = iterable.python_type()
        told = _TELLS_LENGTH and kind in (list, tuple, dict)
        got = f", got {iterable.length(evaluator)}" if told else ""
        evaluator.raise_error(ValueError, f"too many values to unpack (expected {count}{got})")
    evaluator.stack.extend(reversed(elements))


@handles("UNPACK_EX")
def _unpack_ex(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    before, after = instruction.argument & 0xFF, instruction.argument >> 8
    elements = _unpacked(evaluator, evaluator.pop(), before, exact=False)
    if len(elements) < before + after:
        evaluator.raise_error(
            ValueError,
            f"not enough values to unpack (expected at least {before + after}, got {len(elements)})",
        )
    end = len(elements) - after
    evaluator.stack.extend(reversed(elements[end:]))
    evaluator.stack.append(ListVariable(elements[before:end]))
    evaluator.stack.extend(reversed(elements[:before]))


def _unpacked(
    evaluator: FrameEvaluator, iterable: Variable, count: int, exact: bool
) -> list[Variable]:
    """The elements to unpack; of an iterator at most one more than needed, as CPython takes."""
    try:
        iterator = iterable.iterator(evaluator)
    except CapturedException as error:
        kind = iterable.python_type()
        iterates = has_raw(kind, "__iter__") or has_raw(kind, "__getitem__")
        if error.exception.python_type() is TypeError and not iterates:
            evaluator.raise_error(
                TypeError,
                f"cannot unpack non-iterable {name_in_c(kind)} object",
            )
        raise
    elements: list[Variable] = []
    while not exact or len(elements) <= count:
        element = iterator.next_or_none(evaluator)
        if element is None:
            break
        elements.append(element)
    return elements
