"""What calls of the builtin functions, and of those of ``math`` and ``operator``, do."""

from __future__ import annotations

import builtins
import cmath
import math
import operator as operators
import struct
import sys
import types
from typing import Any

import torch

from ...._torch import TRACING_QUERIES
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.class_guards import guard_absent
from ...variables.constant import ConstantVariable
from ...variables.hashing import hashed_key
from ...variables.missing_methods import require_method
from ...variables.operations import values_equal
from ...variables.python_protocols import (
    attribute_name,
    drained,
    find_raw,
    is_callable,
    storage_of,
)
from ..containers.sequences import ListVariable, TupleVariable, sort_variables
from ..containers.sets import SetVariable
from ..containers.slices import index_value
from ..functions.tracing import namespace_is_seen
from ..iterators.builtin_iterators import IteratorVariable, LazyIteratorVariable
from ..iterators.generators import GeneratorVariable
from ..iterators.rebuilding import sentinel_iterator
from ..libraries.mathematics import plain_operands, product
from ..numbers.called_numbers import number_of_each_call
from ..numbers.data_numbers import DataBooleanVariable, depends_on_data, number_of_data
from ..numbers.later_numbers import FUNCTIONS_OF_FLOATS, float_of_later
from ..numbers.signs import is_extreme_positive
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..numbers.tensor_number import number_by
from ..objects.class_attributes import attribute_names, guard_found
from ..objects.classes import ClassVariable
from ..objects.user_objects import UserObjectVariable, instance_hash
from ..table import model, models
from .strings import converted_to_text, format_value


@model(len)
def _len(evaluator: Evaluator, value: Variable, /) -> Variable:
    return value.length_variable(evaluator)


@model(getattr)
def _getattr(
    evaluator: Evaluator, value: Variable, name: Variable, default: Variable | None = None, /
) -> Variable:
    wanted = attribute_name(evaluator, name)
    evaluator.state.kernel_writes.check_attribute(wanted)
    if default is None:
        return value.get_attribute(evaluator, wanted)
    return value.find_attribute(evaluator, wanted) or default


@model(hasattr)
def _hasattr(evaluator: Evaluator, value: Variable, name: Variable, /) -> Variable:
    found = value.find_attribute(evaluator, attribute_name(evaluator, name))
    return ConstantVariable(found is not None)


@model(setattr)
def _setattr(evaluator: Evaluator, target: Variable, name: Variable, value: Variable, /) -> None:
    target.set_attribute(evaluator, attribute_name(evaluator, name), value)


@model(delattr)
def _delattr(evaluator: Evaluator, target: Variable, name: Variable, /) -> None:
    target.delete_attribute(evaluator, attribute_name(evaluator, name))


@model(vars)
def _vars(evaluator: Evaluator, value: Variable | None = None, /) -> Variable:
    if value is None:
        raise namespace_is_seen(evaluator, vars, has_own=False)
    return value.get_attribute(evaluator, "__dict__")


@model(dir)
def _dir(evaluator: Evaluator, value: Variable | None = None, /) -> Variable:
    """The names of a class's attributes, or of an instance's and its class's."""
    if isinstance(value, UserObjectVariable):
        return _names_of(evaluator, value)
    kind = value.value if isinstance(value, ClassVariable) else None
    if kind is None or find_raw(type(kind), "__dir__") is not vars(type)["__dir__"]:
        raise Unsupported("call of a builtin function", f"dir({'' if value is None else value!r})")
    names = sorted(attribute_names(evaluator, kind))
    return ListVariable([ConstantVariable(name) for name in names])


def _names_of(evaluator: Evaluator, instance: UserObjectVariable) -> Variable:
    method = instance.special(evaluator, "__dir__")
    if method is not None:
        return _sorted(evaluator, method.call(evaluator, [], {}))
    names = attribute_names(evaluator, instance.kind)
    if instance.kind.__dictoffset__ != 0:
        entries = instance.instance_dictionary().all_entries(evaluator)
        names |= {key.variable.as_constant() for key in entries}
    return ListVariable([ConstantVariable(name) for name in sorted(names)])


@model(callable)
def _callable(evaluator: Evaluator, value: Variable, /) -> Variable:
    answer, kind = is_callable(value), value.python_type()
    found = evaluator.state.find_in_type(kind, "__call__")
    if not answer:
        guard_absent(evaluator, kind, "__call__")
    elif found is not None:
        guard_found(evaluator, kind, found[0], "__call__", found[1])
    return ConstantVariable(answer)


@model(iter)
def _iter(evaluator: Evaluator, value: Variable, sentinel: Variable | None = None, /) -> Variable:
    if sentinel is None:
        return value.iterator(evaluator)
    last, ended = sentinel, False

    def step(evaluator: Evaluator) -> Variable | None:
        nonlocal ended
        element = None if ended else value.call(evaluator, [], {})
        ended = element is None or values_equal(evaluator, last, element)
        return None if ended else element

    def parts() -> list[Variable]:
        return [ConstantVariable(ended), value, last]

    return LazyIteratorVariable(_CALLABLE_ITERATOR, step, parts, sentinel_iterator)


_CALLABLE_ITERATOR = type(iter(int, 1))


@model(hash)
def _hash(evaluator: Evaluator, value: Variable, /) -> Variable:
    if isinstance(value, UserObjectVariable):
        return instance_hash(evaluator, value)
    if value.python_type() is tuple:
        return evaluator.wrap_constant(evaluator.pure(hash, value.snapshot()))
    key = hashed_key(evaluator, value).python_key
    if key is None or not value.is_constant():
        raise Unsupported("hash of a value", repr(value), "it differs from run to run")
    return ConstantVariable(hash(key[0]))


@model(operators.index)
def _index(evaluator: Evaluator, value: Variable, /) -> Variable:
    return ConstantVariable(index_value(evaluator, value))


@model(next)
def _next(evaluator: Evaluator, iterator: Variable, default: Variable | None = None, /) -> Variable:
    element = iterator.next_or_none(evaluator)
    if element is None:
        element = default
    if element is None:
        if isinstance(iterator, GeneratorVariable):
            iterator.stop(evaluator)
        evaluator.raise_error(StopIteration)
    return element


@model(sorted)
def _sorted(
    evaluator: Evaluator,
    iterable: Variable,
    /,
    *,
    key: Variable | None = None,
    reverse: Variable | None = None,
) -> Variable:
    storage = storage_of(iterable)
    if isinstance(storage, SetVariable) and key is None and storage.is_ordered(evaluator):
        items = storage.elements(evaluator)  # comes out the same from any order
    else:
        items = iterable.iterate(evaluator)
    sort_variables(evaluator, items, key, reverse)
    return ListVariable(items)


@models(any, all)
def _any(function: Any, evaluator: Evaluator, iterable: Variable, /) -> Variable:
    ends_with = function is any
    iterator = iterable.iterator(evaluator)
    while (element := iterator.next_or_none(evaluator)) is not None:
        if element.truth(evaluator) is ends_with:
            return ConstantVariable(ends_with)
    return ConstantVariable(not ends_with)


@model(sum)
def _sum(evaluator: Evaluator, iterable: Variable, /, start: Variable | None = None) -> Variable:
    total: Variable = ConstantVariable(0) if start is None else start
    if issubclass(total.python_type(), (str, bytes, bytearray)):
        evaluator.pure(sum, (), total.python_type()())  # raises
    iterator = iterable.iterator(evaluator)
    numbers: list[Variable] = []
    while (element := iterator.next_or_none(evaluator)) is not None:
        if _COMPENSATED_SUM and total.python_type() in _ROUNDED and _is_number(element):
            numbers.append(element)
            continue
        total = _with_numbers(evaluator, total, numbers)
        numbers = []
        total = evaluator.binary_operation("add", total, element)
    return _with_numbers(evaluator, total, numbers)


_COMPENSATED_SUM = sum([0.1] * 10) == 1.0
"""Whether what rounding loses of floats is added at the end: since 3.12, of complex numbers since 3.14."""
_ROUNDED = (float, complex)


def _is_number(value: Variable) -> bool:
    return value.python_type() in _ROUNDED or issubclass(value.python_type(), int)


def _with_numbers(evaluator: Evaluator, total: Variable, numbers: list[Variable]) -> Variable:
    """``total``, a float or a complex number, and ``numbers``, as CPython adds them.

    Nothing is to be made up for where the only float comes last: its sum is the exact one, rounded.
    """
    if total.is_constant() and all(number.is_constant() for number in numbers) and numbers:
        values = [number.as_constant() for number in numbers]
        return evaluator.wrap_constant(evaluator.pure(sum, values, total.as_constant()))
    if total.is_constant() and total.as_constant() == 0 and numbers:
        first, *numbers = numbers
        total = evaluator.binary_operation("add", total, first)
    if any(number.python_type() in _ROUNDED for number in numbers[:-1]):
        raise Unsupported("sum of floats", f"{len(numbers) + 1} numbers")
    for number in numbers:
        total = evaluator.binary_operation("add", total, number)
    return total


@models(min, max)
def _extreme(
    function: Any,
    evaluator: Evaluator,
    first: Variable,
    /,
    *others: Variable,
    key: Variable | None = None,
    default: Variable | None = None,
) -> Variable:
    if others and default is not None:
        evaluator.pure(function, 0, 0, default=None)  # raises
    items = [first, *others] if others else drained(evaluator, first.iterator(evaluator))
    if not items:
        return default or ConstantVariable(evaluator.pure(function, ()))  # raises
    keys = items
    if key is not None and not key.is_none():
        keys = [key.call(evaluator, [item], {}) for item in items]
    best, least = items[0], keys[0]
    for item, own in zip(items[1:], keys[1:], strict=True):
        outcome = evaluator.binary_operation("lt" if function is min else "gt", own, least)
        number: Variable | None = None
        if keys is items:
            number = float_of_later(function, [best, item])
        if keys is items and number is None:
            chosen = number = number_by(evaluator, outcome, item, best)
            if chosen is not None:
                chosen.is_positive = is_extreme_positive(function, [best, item])
            elif isinstance(outcome, DataBooleanVariable):
                number = number_of_data(evaluator, function, [best, item])
        if number is not None:
            best = least = number
        elif outcome.truth(evaluator):
            best, least = item, own
    return best


@model(abs)
def _abs(evaluator: Evaluator, value: Variable, /) -> Variable:
    if value.is_constant():
        return evaluator.wrap_constant(evaluator.pure(abs, value.as_constant()))
    require_method(evaluator, value, "__abs__")
    return value.call_method(evaluator, "__abs__", [], {})


@models(*(query for query in TRACING_QUERIES if query is not None))  # not of this torch
def _tracing_query(function: Any, evaluator: Evaluator) -> Variable:
    answer = TRACING_QUERIES[function]
    if function() != answer:
        raise Unsupported("call inside torch.jit.trace")
    return ConstantVariable(answer)


# Functions of constants alone.

_PURE: tuple[Any, ...] = (
    builtins.round, builtins.divmod, builtins.pow, builtins.ord, builtins.chr, builtins.bin,
    builtins.hex, builtins.oct, builtins.ascii, str.maketrans, bytes.maketrans, sys.intern, struct.pack,
    struct.unpack, struct.calcsize,
    *(
        value
        for name, value in (*vars(math).items(), *vars(cmath).items())
        if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_")
    ),
)  # fmt: skip


def _graph_operand(arguments: tuple[Variable, ...]) -> Variable | None:
    return next((argument for argument in arguments if argument.node is not None), None)


@model(math.prod)
def _product(
    evaluator: Evaluator, elements: Variable, /, *, start: Variable | None = None
) -> Variable:
    return product(evaluator, elements, start)


@models(*(function for function in _PURE if function is not math.prod))
def _pure(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    if any(isinstance(a, (UserObjectVariable, IteratorVariable)) for a in arguments):
        arguments = tuple(plain_operands(evaluator, function, arguments))
    custom = _graph_operand(arguments)
    if not keywords and any(isinstance(a, UserObjectVariable) for a in arguments):
        answer = _by_special_method(function, evaluator, arguments)
        if answer is not None:
            return answer
    symbolic = next((a for a in arguments if isinstance(a, SymbolicNumberVariable)), None)
    if symbolic is not None and not keywords:
        if function is math.sqrt and len(arguments) == 1 and not depends_on_data(arguments[0]):
            return symbolic.computation(evaluator, "sqrt")
        if function in _ROUNDINGS and len(arguments) == 1:
            return symbolic.call_method(evaluator, _SPECIAL_METHODS[function], [], {})
        if function is builtins.divmod and all(map(_is_plain_number, arguments)):
            left, right = arguments
            parts = [evaluator.binary_operation(o, left, right) for o in ("floordiv", "mod")]
            return TupleVariable(parts)
        if function is builtins.pow and len(arguments) == 2:
            return evaluator.binary_operation("pow", *arguments)
        number = number_of_each_call(evaluator, function, arguments)
        if number is not None:
            return number
    if custom is not None and function is builtins.pow and len(arguments) == 2 and not keywords:
        return evaluator.binary_operation("pow", *arguments)
    if (
        function in FUNCTIONS_OF_FLOATS
        and custom is not None
        and custom.python_type() is torch.Tensor
    ):
        read = custom.call_method(evaluator, "__float__", [], {})
        return _pure(function, evaluator, read)
    if custom is not None:
        raise Unsupported("number that the graph computes", f"{function.__name__}({custom!r})")
    positional, named = evaluator.snapshots(arguments, keywords, function.__name__)
    return evaluator.wrap_result(evaluator.pure(function, *positional, **named))


def _is_plain_number(variable: Variable) -> bool:
    return isinstance(variable, SymbolicNumberVariable) or (
        variable.is_constant() and type(variable.as_constant()) in (int, float)
    )


_SPECIAL_METHODS = {
    builtins.round: "__round__", builtins.pow: "__pow__", math.floor: "__floor__", math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}  # fmt: skip
_ROUNDINGS = (math.floor, math.ceil, math.trunc)


def _by_special_method(
    function: Any, evaluator: Evaluator, arguments: tuple[Variable, ...]
) -> Variable | None:
    """What a class of the program's own answers; None where it has no method for the function."""
    operator = {builtins.pow: "pow", builtins.divmod: "divmod"}.get(function)
    if operator is not None and len(arguments) == 2:
        pairs = (arguments, False), (arguments[::-1], True)
        for (receiver, other), reflected in pairs:
            if isinstance(receiver, UserObjectVariable):
                answer = receiver.binary_operation(evaluator, operator, other, reflected)
                if answer is not None:
                    return answer
        return None
    receiver, *rest = arguments
    name = _SPECIAL_METHODS.get(function)
    if name is None or not isinstance(receiver, UserObjectVariable):
        return None
    method = receiver.special(evaluator, name)
    if method is None:
        return None
    return method.call(evaluator, [part for part in rest if not part.is_none()], {})


@model(repr)
def _repr(evaluator: Evaluator, value: Variable, /) -> Variable:
    return converted_to_text(evaluator, repr, value)


@model(format)
def _format(
    evaluator: Evaluator, value: Variable, specification: Variable | None = None, /
) -> Variable:
    return format_value(evaluator, value, None, specification or ConstantVariable(""))
