"""Opcodes of operators, comparisons, subscripts and string formatting."""

from __future__ import annotations

import dis

from ...code_objects.dialects import DIALECT
from ..decode import DecodedInstruction, handles
from ..evaluator import FrameEvaluator
from ..models.builtins.strings import format_value
from ..models.containers.slices import SliceVariable
from ..models.libraries.templates import InterpolationVariable, TemplateVariable
from ..models.numbers.data_texts import joined
from ..models.numbers.tensor_number import truth_in_tensor
from ..regions.filled_lists.listed_rows import counted_element
from ..variables.constant import ConstantVariable
from ..variables.missing_methods import require_method
from ..variables.operations import contains, is_same_object, unary_operation

_BINARY_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift", "[]": "getitem",
}  # fmt: skip


def _binary_table() -> list[str]:
    """Operator names by ``BINARY_OP`` operand."""
    table = []
    for _, symbol in dis._nb_ops:  # type: ignore[attr-defined]
        if symbol.endswith("="):
            table.append("i" + _BINARY_NAMES[symbol[:-1]])
        else:
            table.append(_BINARY_NAMES[symbol])
    return table


_BINARY = _binary_table()
_COMPARISONS = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


@handles("BINARY_OP")
def _binary_op(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    if _BINARY[instruction.argument] == "getitem":  # 3.14
        _binary_subscr(evaluator, instruction)
        return
    left, right = evaluator.pop_many(2)
    result = evaluator.binary_operation(_BINARY[instruction.argument], left, right)
    evaluator.stack.append(result)


@handles("COMPARE_OP")
def _compare_op(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    left, right = evaluator.pop_many(2)
    symbol = dis.cmp_op[instruction.argument >> DIALECT.comparison_shift]
    evaluator.stack.append(evaluator.binary_operation(_COMPARISONS[symbol], left, right))


@handles("IS_OP")
def _is_op(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    left, right = evaluator.pop_many(2)
    result = is_same_object(evaluator, left, right)
    evaluator.stack.append(ConstantVariable(result != bool(instruction.argument)))


@handles("CONTAINS_OP")
def _contains_op(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    item, container = evaluator.pop_many(2)
    result = contains(evaluator, container, item)
    evaluator.stack.append(ConstantVariable(result != bool(instruction.argument)))


@handles("UNARY_NOT", "TO_BOOL")
def _truth(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """TO_BOOL where no test is behind it: ``not not x``."""
    operand, wanted = evaluator.pop(), instruction.name == "TO_BOOL"
    found = truth_in_tensor(evaluator, operand, wanted)
    evaluator.stack.append(found or ConstantVariable(operand.truth(evaluator) is wanted))


_UNARY = {"UNARY_NEGATIVE": "neg", "UNARY_POSITIVE": "pos", "UNARY_INVERT": "invert"}


@handles(*_UNARY)
def _unary(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    operand = evaluator.pop()
    evaluator.stack.append(unary_operation(evaluator, _UNARY[instruction.name], operand))


@handles("BINARY_SUBSCR")
def _binary_subscr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    container, key = evaluator.pop_many(2)
    found = counted_element(evaluator, container, key)
    if found is None:
        require_method(evaluator, container, "__getitem__")
        found = container.call_method(evaluator, "__getitem__", [key], {})
    evaluator.stack.append(found)


@handles("STORE_SUBSCR")
def _store_subscr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value, container, key = evaluator.pop_many(3)
    require_method(evaluator, container, "__setitem__")
    container.call_method(evaluator, "__setitem__", [key, value], {})


@handles("DELETE_SUBSCR")
def _delete_subscr(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    container, key = evaluator.pop_many(2)
    require_method(evaluator, container, "__delitem__")
    container.call_method(evaluator, "__delitem__", [key], {})


@handles("BUILD_SLICE")
def _build_slice(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    parts = evaluator.pop_many(instruction.argument)
    if len(parts) == 2:
        parts.append(ConstantVariable(None))
    evaluator.stack.append(SliceVariable(*parts))


@handles("BINARY_SLICE")
def _binary_slice(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    container, start, stop = evaluator.pop_many(3)
    require_method(evaluator, container, "__getitem__")
    key = SliceVariable(start, stop, ConstantVariable(None))
    evaluator.stack.append(container.call_method(evaluator, "__getitem__", [key], {}))


@handles("STORE_SLICE")
def _store_slice(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    value, container, start, stop = evaluator.pop_many(4)
    require_method(evaluator, container, "__setitem__")
    key = SliceVariable(start, stop, ConstantVariable(None))
    container.call_method(evaluator, "__setitem__", [key, value], {})


_CONVERSIONS = {0: None, 1: "str", 2: "repr", 3: "ascii"}


@handles("FORMAT_VALUE", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
def _format(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    """One instruction up to 3.12; since then one converts, and another formats."""
    name, flags = instruction.name, instruction.argument
    is_specified = name == "FORMAT_WITH_SPEC" or (name == "FORMAT_VALUE" and flags & 4)
    specification = evaluator.pop() if is_specified else ConstantVariable("")
    conversion = None if name.startswith("FORMAT_") and name != "FORMAT_VALUE" else flags & 3
    made = format_value(evaluator, evaluator.pop(), _CONVERSIONS[conversion or 0], specification)
    evaluator.stack.append(made)


@handles("BUILD_STRING")
def _build_string(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    evaluator.stack.append(joined(evaluator, evaluator.pop_many(instruction.argument)))


@handles("BUILD_INTERPOLATION")
def _build_interpolation(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    conversion, is_specified = instruction.argument >> 2, instruction.argument & 1
    specification = evaluator.pop() if is_specified else ConstantVariable("")
    value, expression = evaluator.pop_many(2)
    name = _CONVERSIONS[conversion]
    letter = ConstantVariable(name and name[0])
    evaluator.stack.append(InterpolationVariable(value, expression, letter, specification))


@handles("BUILD_TEMPLATE")
def _build_template(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    strings, interpolations = evaluator.pop_many(2)
    held = interpolations.iterate(evaluator)
    evaluator.stack.append(TemplateVariable(strings.as_constant(), held))


@handles("GET_LEN")
def _get_len(evaluator: FrameEvaluator, instruction: DecodedInstruction) -> None:
    top = evaluator.stack[-1]
    assert top is not None
    evaluator.stack.append(ConstantVariable(top.length(evaluator)))
