"""What optimizers call with numbers that are tensors: step counts stay in the graph, learning rates may."""

from __future__ import annotations

from typing import Any

from weft_guards import IsObject, Source

from ...._torch import LIST_UPDATES, optimizer_value, optimizer_values
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_object
from ..containers.sequences import ListVariable, TupleVariable
from .tensor import TensorVariable
from .torch_function import TorchFunctionVariable


class OptimizerValueVariable(TorchFunctionVariable):
    """By it optimizers read a number that may be a tensor's; a tensor stays one, as exact as the number.

    Their function for lists leaves a list alone.
    """

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        (value,) = arguments
        if isinstance(value, TensorVariable):
            return value.call_method(evaluator, "double", [], keywords)
        return value


class ListUpdateVariable(TorchFunctionVariable):
    """A ``torch._foreach`` update; one with a tensor for each element's number is done element by element.

    Operators on lists want numbers, or all of them in one tensor.
    """

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        numbers = arguments[-1]
        if len(arguments) < 4 or not _has_tensors(evaluator, numbers):
            return super().call(evaluator, arguments, keywords)
        columns = [argument.iterate(evaluator) for argument in arguments]
        for tensor, left, right, value in zip(*columns, strict=True):
            tensor.call_method(evaluator, LIST_UPDATES[self.value], [left, right], {"value": value})
        return evaluator.wrap_constant(None)


def _has_tensors(evaluator: Evaluator, numbers: Variable) -> bool:
    return isinstance(numbers, (ListVariable, TupleVariable)) and any(
        isinstance(number, TensorVariable) for number in numbers.iterate(evaluator)
    )


@register_object(optimizer_value, optimizer_values)
def _wrap_value(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return OptimizerValueVariable(value, source)


@register_object(*LIST_UPDATES)
def _wrap_update(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return ListUpdateVariable(value, source)
