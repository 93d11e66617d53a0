"""Python's protocols for operators, on variables."""

from __future__ import annotations

from typing import Any

from weft_guards import NotAliased

from ...unsupported import Unsupported
from ..models.numbers.representations import NumberVariable
from ..protocol import Evaluator
from .base import Variable
from .constant import OPERATORS, ConstantVariable
from .missing_methods import name_in_c, require_method
from .python_protocols import (
    COMPARISONS,
    find_raw,
    is_made_by_statement,
    resolution_order,
    special_name,
    storage_of,
)

SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "** or pow()", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<",
    "rshift": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def binary_operation(
    evaluator: Evaluator, operator: str, left: Variable, right: Variable
) -> Variable:
    """``left <operator> right``; TypeError as Python words it when neither side knows how."""
    if type(left) is ConstantVariable and type(right) is ConstantVariable:
        folded = left.binary_operation(evaluator, operator, right, False)
        if folded is not None:
            return folded
    in_place = operator not in SYMBOLS and operator[0] == "i" and operator[1:] in SYMBOLS
    if in_place:
        result = left.binary_operation(evaluator, operator, right, False)
        if result is not None:
            return result
    plain = operator[1:] if in_place else operator
    result = _plain_operation(evaluator, plain, left, right)
    if result is not None:
        return result
    result = _scalar_operation(evaluator, plain, left, right)
    if result is not None:
        return result
    result = _sequence_operation(evaluator, plain, left, right)
    if result is not None:
        return result
    _require_modelled(operator, plain, left, right)
    if operator == "eq":
        return ConstantVariable(is_same_object(evaluator, left, right))
    if operator == "ne":
        return ConstantVariable(not is_same_object(evaluator, left, right))
    symbol = SYMBOLS[plain] + ("=" if in_place else "")
    left_name, right_name = name_in_c(left.python_type()), name_in_c(right.python_type())
    if operator in COMPARISONS:
        message = f"{symbol!r} not supported between instances of {left_name!r} and {right_name!r}"
    else:
        if in_place and plain == "pow":
            symbol = "**="
        message = f"unsupported operand type(s) for {symbol}: {left_name!r} and {right_name!r}"
    return evaluator.raise_error(TypeError, message)


def _scalar_operation(
    evaluator: Evaluator, operator: str, left: Variable, right: Variable
) -> Variable | None:
    """What a number or text answers where the other, of a class derived from one, has not."""
    for variable, other, reflected in ((left, right, False), (right, left, True)):
        storage, kind = storage_of(other), variable.python_type()
        if storage is other or kind not in _SCALARS or storage.python_type() not in _SCALARS:
            continue
        method: Any = getattr(kind, special_name(operator, reflected), None)
        alike = storage.python_type() is kind
        concatenates = operator == "add" and alike and not reflected
        if kind in _SEQUENCES and operator not in COMPARISONS and not concatenates:
            continue
        if method is None:
            continue
        if not (variable.is_constant() and storage.is_constant()):
            raise Unsupported("operator of a builtin type", f"{left!r} {operator} {right!r}")
        result = evaluator.pure(method, variable.as_constant(), storage.as_constant())
        if result is not NotImplemented:
            return evaluator.wrap_result(result)
    return None


_SCALARS = frozenset((bool, int, float, complex, str, bytes))


_SEQUENCES = {
    str: 'can only concatenate str (not "{}") to str',
    list: 'can only concatenate list (not "{}") to list',
    tuple: 'can only concatenate tuple (not "{}") to tuple',
    bytes: "can't concat {} to bytes",
}


def _sequence_operation(
    evaluator: Evaluator, operator: str, left: Variable, right: Variable
) -> Variable | None:
    """What sequences do where no operand has the operator: ``"ab" * index``, or their own errors."""
    kinds = left.python_type(), right.python_type()
    if operator == "add" and kinds[0] in _SEQUENCES:
        message = _SEQUENCES[kinds[0]].format(name_in_c(kinds[1]))
        evaluator.raise_error(TypeError, message)
    if operator != "mul" or not any(kind in _SEQUENCES for kind in kinds):
        return None
    sequence, count = (left, right) if kinds[0] in _SEQUENCES else (right, left)
    kind = count.python_type()
    if find_raw(kind, "__index__") is None:
        message = f"can't multiply sequence by non-int of type {name_in_c(kind)!r}"
        evaluator.raise_error(TypeError, message)
    if not sequence.is_constant():
        return None
    times = count.call_method(evaluator, "__index__", [], {})
    return binary_operation(evaluator, "mul", sequence, times)


def _require_modelled(operator: str, plain: str, left: Variable, right: Variable) -> None:
    """Unsupported if an operand's class in C has the operator, and its variable knows none."""
    for variable, special in (
        (left, special_name(plain, False)),
        (right, special_name(plain, True)),
    ):
        kind = type(variable)
        if (
            kind.binary_operation is not Variable.binary_operation
            or kind.equals is not Variable.equals
        ):
            continue
        raw = find_raw(variable.python_type(), special)
        if raw is not None and raw is not object.__dict__.get(special):
            raise Unsupported("operator of a builtin type", f"{left!r} {operator} {right!r}")


def _plain_operation(
    evaluator: Evaluator, operator: str, left: Variable, right: Variable
) -> Variable | None:
    if isinstance(right, NumberVariable) and left.is_constant():
        result = right.binary_operation(evaluator, operator, left, True)
        if result is not None:
            return result
    left_type, right_type = left.operand_type(), right.operand_type()
    derived = right_type is not left_type and left_type in resolution_order(right_type)
    reflected_first = derived and (
        operator in COMPARISONS or _overrides(right_type, left_type, f"__r{operator}__")
    )
    if reflected_first:
        result = right.binary_operation(evaluator, operator, left, True)
        if result is not None:
            return result
    result = left.binary_operation(evaluator, operator, right, False)
    if result is not None:
        return result
    # Python asks the right operand of the same class no more; a constant's variable knows less than
    # that of a value which data gives: "a" + f"{n}".
    knows_less = left.is_constant() and (not right.is_constant() or right.is_made_of_numbers())
    is_asked = left_type is not right_type or operator in COMPARISONS or knows_less
    if reflected_first or not is_asked:
        return None
    return right.binary_operation(evaluator, operator, left, True)


def _overrides(kind: type, base: type, name: str) -> bool:
    """Whether a class has another method than its base; one that is a builtin class has its own."""
    return not is_made_by_statement(base) or find_raw(kind, name) is not find_raw(base, name)


def is_same_object(evaluator: Evaluator, left: Variable, right: Variable) -> bool:
    """``left is right``, guarded where two objects from outside the frame are told apart."""
    if left is right:
        return True
    if left.is_constant() and right.is_constant():
        left_value, right_value = left.as_constant(), right.as_constant()
        if left_value is right_value:
            return True
        if type(left_value) is not type(right_value) or left_value != right_value:
            return False
        raise Unsupported(
            "identity of equal constants",
            f"{left!r} is {right!r}",
            "CPython may or may not share them",
        )
    identity = left.same_object(evaluator, right)
    if identity is None:
        identity = right.same_object(evaluator, left)
    if identity is not None:
        return identity
    # One variable stands for one object; guards that two paths differ are added when it matters.
    if left.source is not None and right.source is not None:
        guard_distinct(evaluator, left, right)
    return False


def contains(evaluator: Evaluator, container: Variable, item: Variable) -> bool:
    """``item in container``."""
    require_method(evaluator, container, "__contains__")
    return container.call_method(evaluator, "__contains__", [item], {}).truth(evaluator)


def values_equal(evaluator: Evaluator, left: Variable, right: Variable) -> bool:
    """``left is right or left == right``, as containers compare their elements."""
    if left is right:
        return True
    if type(left) is ConstantVariable and type(right) is ConstantVariable:
        return left.value is right.value or bool(left.value == right.value)
    return binary_operation(evaluator, "eq", left, right).truth(evaluator)


def unary_operation(evaluator: Evaluator, operator: str, operand: Variable) -> Variable:
    """``-x``, ``+x``, ``~x``; ``operator`` is "neg", "pos" or "invert"."""
    if operand.is_constant() and not hasattr(type(operand.as_constant()), "_member_map_"):
        import operator as operators

        return evaluator.wrap_constant(
            evaluator.pure(getattr(operators, operator), operand.as_constant())
        )
    require_method(evaluator, operand, f"__{operator}__")
    return operand.call_method(evaluator, f"__{operator}__", [], {})


assert set(SYMBOLS) <= set(OPERATORS)


def compare_sequences(
    evaluator: Evaluator, operator: str, left: list[Variable], right: list[Variable]
) -> Variable:
    """Comparison as of lists and tuples; a list may change while its elements are compared."""
    if operator in ("eq", "ne") and len(left) != len(right):
        return evaluator.wrap_constant(operator == "ne")
    place = 0
    while place < min(len(left), len(right)):
        first, second = left[place], right[place]
        evaluator.state.note_elements(1)
        if not values_equal(evaluator, first, second):
            if place >= min(len(left), len(right)):
                break
            if operator in ("eq", "ne"):
                return evaluator.wrap_constant(operator == "ne")
            return evaluator.binary_operation(operator, first, second)
        place += 1
    lengths = ConstantVariable(len(left)), ConstantVariable(len(right))
    return evaluator.binary_operation(operator, *lengths)


# Guards that keep apart objects that were apart during capture.


def guard_distinct(evaluator: Evaluator, left: Variable, right: Variable) -> None:
    """Guard that two objects found at two sources are still two objects, unless their types tell."""
    first, second = left.source, right.source
    if first is None or second is None or left.python_type() is not right.python_type():
        return
    if evaluator.state.is_identified(first) and evaluator.state.is_identified(second):
        return
    evaluator.guard(second, NotAliased(first))


def guard_mutated_objects(evaluator: Evaluator) -> None:
    """Guard that no mutated object is also reached by a path that held another object in this capture."""
    mutated = evaluator.side_effects.mutated_variables()
    if not mutated:
        return
    rows = [(variable, source) for _, variable, source in evaluator.builder.wrapped()]
    for target in mutated:
        if target.source is None:
            continue
        for variable, source in rows:
            if variable is target or source == target.source:
                continue
            if type(variable) is type(target):
                guard_distinct(evaluator, target, variable)
