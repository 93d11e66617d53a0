"""``x.new(x.size())``: the method of old programs, which takes a size, integers, or data."""

from __future__ import annotations

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..containers.sequences import TupleVariable
from ..numbers.representations import NumberVariable
from ..table import model
from .tensor import TensorVariable
from .torch_values import SizeVariable


@model(torch.Tensor.new)
def _new(
    evaluator: Evaluator, tensor: TensorVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A new tensor of a size; a graph's tuples are plain ones, which stand for data here."""
    size: Variable | None = None
    if len(arguments) == 1 and isinstance(arguments[0], SizeVariable):
        size = arguments[0]
    elif all(map(_is_integer, arguments)):
        size = TupleVariable(list(arguments) or [evaluator.wrap_result(0)])
    if size is None or keywords:
        raise Unsupported("argument of an operator", f"{tensor!r}.new() of data or keywords")
    return evaluator.graph.call_method(evaluator, "new_empty", tensor, [size], {})


def _is_integer(variable: Variable) -> bool:
    if isinstance(variable, NumberVariable):
        return variable.python_type() is int
    return variable.is_constant() and type(variable.as_constant()) is int
