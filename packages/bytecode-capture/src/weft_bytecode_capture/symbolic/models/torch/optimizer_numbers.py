"""What optimizers call with numbers that are in tensors: counts of steps, and what is computed of them."""

from __future__ import annotations

from typing import Any

from ...._torch import LIST_FUNCTIONS, optimizer_value, optimizer_values
from ...protocol import Evaluator
from ...variables.base import Variable
from ..containers.sequences import ListVariable, TupleVariable
from ..numbers.number_arguments import has_number
from ..numbers.tensor_number import read_in_region
from ..table import model, models
from .tensor import TensorVariable
from .torch_function import TorchFunctionVariable

_NUMBER_AT = 3
"""Where ``addcdiv`` and ``addcmul`` of lists have the numbers, which one tensor's method takes by name."""


@model(optimizer_value)
def _optimizer_value(evaluator: Evaluator, x: Variable) -> Variable:
    """By it optimizers read a number that may be a tensor's: it stays in the graph.

    Torch's own form for compilers computes with the tensor.  So nothing that it divides by is checked.
    """
    if not isinstance(x, TensorVariable):
        return x
    if not x.fake.dtype.is_floating_point:
        return x.call_method(evaluator, "double", [], {})
    return unchecked_number(evaluator, x) or x


def unchecked_number(evaluator: Evaluator, tensor: TensorVariable) -> Variable | None:
    """The only element of a tensor as a number by which anything may be divided; None of several."""
    number = read_in_region(evaluator, tensor, None)
    if number is not None:
        number.unchecked = True
    return number


@model(optimizer_values)
def _optimizer_values(evaluator: Evaluator, x: Variable) -> Variable:
    """Their function for lists of such numbers leaves a list alone."""
    return x


@models(*LIST_FUNCTIONS)
def _list_function(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A ``torch._foreach`` function; one of numbers that the graph computes is called element by element."""
    lists = (ListVariable, TupleVariable)
    first = arguments[0] if arguments else None
    columns = [a.iterate(evaluator) if isinstance(a, lists) else None for a in arguments]
    computed = any(
        has_number([argument] if items is None else items)
        for argument, items in zip(arguments, columns, strict=True)
    )
    if not computed or keywords or not isinstance(first, lists) or columns[0] is None:
        return TorchFunctionVariable(function, None).call(evaluator, [*arguments], keywords)
    name, made = LIST_FUNCTIONS[function], []
    for number in range(len(columns[0])):
        row = [
            argument if items is None else items[number]
            for argument, items in zip(arguments, columns, strict=True)
        ]
        named = {"value": row[_NUMBER_AT]} if len(row) > _NUMBER_AT else {}
        made.append(row[0].call_method(evaluator, name, row[1:_NUMBER_AT], named))
    return evaluator.wrap_constant(None) if name.endswith("_") else TupleVariable(made)
